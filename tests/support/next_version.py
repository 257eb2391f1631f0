"""A broker of the next machine version, for tests of upgrades: it differs in bytes and in what it does.

In the next version, that of no release, an entry of commands begins with a mark, which a broker of now cannot
read; and to purge a queue does nothing, and tells of 0 messages.

Run as a program it is ``amqp10broker``: ``python -m tests.support.next_version serve ...``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import Purge
from amqp10broker.queues.quorum import commands
from amqp10broker.queues.quorum import log_store as quorum_store
from amqp10broker.queues.quorum.commands import Encoded, EntryCommands, QuorumCommand
from amqp10broker.queues.quorum.queue import QuorumQueue

MARK: Final = b"\xfe"
"""A command of no content, whose tag is of that version."""
VERSION: Final = machine_version.NEWEST + 1
HEAD_BYTES: Final = 20
_encode = commands.encode_commands
_decode = commands.decode_commands
_purge = QuorumQueue._purge


def encode_commands(commands: Sequence[QuorumCommand], now_ms: int, first: int, version: int = 1) -> Encoded:
    """Encode as the current versions do, and for the next version with its mark."""
    encoded = _encode(commands, now_ms, first, version)
    if version < VERSION:
        return encoded
    places = [place._replace(at=place.at + len(MARK)) for place in encoded.places]
    return Encoded([encoded.pieces[0] + MARK, *encoded.pieces[1:]], places, encoded.end)


def decode_commands(payload: bytes) -> EntryCommands:
    return _decode(payload[:HEAD_BYTES] + payload[HEAD_BYTES:].removeprefix(MARK))


def purge(queue: QuorumQueue, command: Purge) -> None:
    """The queue state's version selects the purge, as it does every command."""
    if queue.version < VERSION:
        _purge(queue, command)
    else:
        queue._answer(command.request, 0)


def become(put: Callable[[Any, str, Any], None]) -> None:
    """Make this process apply the next version too."""
    put(machine_version, "NEWEST", VERSION)
    put(quorum_store, "encode_commands", encode_commands)
    put(quorum_store, "decode_commands", decode_commands)
    put(QuorumQueue, "_purge", purge)


if __name__ == "__main__":
    from amqp10broker.cli.main import main

    become(setattr)
    sys.exit(main())
