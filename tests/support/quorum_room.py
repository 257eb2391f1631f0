"""The room `queues.quorum`, as it is or with a fault planted in its sources; see `raft_room`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import amqp10broker.queues.quorum
from tests.support.raft_room import Patch, Room, load

FOLDER = Path(amqp10broker.queues.quorum.__file__).parent
# In the order in which they import each other.
MODULES = (
    "commands", "ordered_entries", "later", "numbers", "ready", "bodies", "command_codec", "journal_bodies",
    "dead_letters", "consumer", "messages", "node_links", "selecting", "consumers", "browsing", "queue",
    "snapshot",
)  # fmt: skip
ROOM = "amqp10broker.queues.quorum"


def the_quorum_room() -> Room:
    """The room as it is."""
    return quorum_mutant("the_room", ())


def quorum_mutant(name: str, patches: Sequence[Patch]) -> Room:
    """The room with faults in it.

    Args:
        name: letters, digits and underscores; tells mutants apart.
        patches: what is wrong.
    """
    package = f"{ROOM}_{name}" if patches else ROOM
    modules = []
    for module in MODULES:
        source = (FOLDER / f"{module}.py").read_text(encoding="utf-8")
        for patch in patches:
            if patch.module == module:
                assert source.count(patch.old) == 1, f"{name}: {module}.py has not exactly one {patch.old!r}"
                source = source.replace(patch.old, patch.new)
        modules.append(load(f"{package}.{module}", source.replace(f"{ROOM}.", f"{package}."), f"{ROOM}."))
    return Room(modules)
