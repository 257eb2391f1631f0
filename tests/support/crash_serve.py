"""``amqp10broker`` with small files of the journal: a crash test of seconds meets full and cleaned ones.

Run as a program: ``python -m tests.support.crash_serve BYTES serve ...``.
"""

from __future__ import annotations

import sys

from amqp10broker.cli.main import main
from amqp10broker.runtime.journal import journal_task

if __name__ == "__main__":
    journal_task.FILE_BYTES_MAX = int(sys.argv.pop(1))  # type: ignore[misc]
    sys.exit(main())
