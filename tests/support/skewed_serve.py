"""``amqp10broker`` on a machine whose clock is wrong by so many seconds.

Run as a program: ``python -m tests.support.skewed_serve SECONDS serve ...``.
"""

from __future__ import annotations

import sys
import time

from amqp10broker.cli.main import main


def set_clock(ahead_s: float) -> None:
    """Whatever asks for the time of day from now on gets a wrong one; the monotonic clock goes on."""
    right = time.time
    time.time = lambda: right() + ahead_s


if __name__ == "__main__":
    set_clock(float(sys.argv.pop(1)))
    sys.exit(main())
