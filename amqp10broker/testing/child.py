"""``python -m amqp10broker.testing.child serve ...``: the command line, which ends with its parent process.

Standard input is a pipe that only the parent holds open: at its end, for whatever reason, the broker stops.
So a killed run of tests leaves no broker running.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from amqp10broker.cli.main import main


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass  # the pipe carries no data
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main())
