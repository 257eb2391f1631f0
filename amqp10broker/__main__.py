"""``python -m amqp10broker``: the same as the `amqp10broker` command."""

from __future__ import annotations

import sys

from amqp10broker.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
