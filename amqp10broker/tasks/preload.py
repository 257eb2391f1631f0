"""Importing, once the broker serves, what it imports when it is first needed.

A broker starts sooner without quorum queues, streams, filters and argon2, and most need some of them later.
Then there may be no file left to open (`ulimit -n`), and an import that fails is a fault of the broker to
the client whose request needed it. So they are imported right after the start, one in a turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Final

import trio

from amqp10broker.tasks.log import Log

_log = Log("amqp10broker.broker")

MODULES: Final = (
    "amqp10broker.persistence.quorum_keeper",
    "amqp10broker.persistence.quorum_store",
    "amqp10broker.persistence.spool",
    "amqp10broker.queues.quorum.commands",
    "amqp10broker.queues.quorum.queue",
    "amqp10broker.replication.groups",
    "amqp10broker.replication.ids",
    "amqp10broker.replication.member",
    "amqp10broker.queues.stream.queue",
    "amqp10broker.storage.stream_log",
    "amqp10broker.storage.stream_memory",
    "amqp10broker.persistence.stream_commits",
    "amqp10broker.persistence.stream_keeper",
    "amqp10broker.message.filters.filters",
    "amqp10broker.message.filters.selector",
    "amqp10broker.message.filters.consumer_arguments",
    "amqp10broker.message.filters.wanted",
    "amqp10broker.tasks.inspection",
    "amqp10broker.tasks.member_states",
    "argon2",
    "ctypes",
    "encodings.idna",
)
"""All that the broker's rooms import inside of functions, but what needs a package that may not be there."""


async def preload(more: Iterable[str] = ()) -> None:
    """Import them, letting others run between two.

    Args:
        more: further ones.
    """
    for name in (*MODULES, *more):
        try:
            import_module(name)
        except (ImportError, OSError) as error:
            # It is tried again when it is needed.
            _log.warning("could not be loaded ahead", module=name, reason=str(error))
        await trio.lowlevel.checkpoint()
