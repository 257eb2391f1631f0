"""``python -m amqp10broker.testing.child serve ...``: the command line, which ends with who has started it.

Standard input is a pipe that only the parent holds open: at its end, for whatever reason, the broker is told
to stop. So a run of tests that was killed leaves no broker behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from amqp10broker.cli.main import main


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass  # it has nothing to say
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main())
