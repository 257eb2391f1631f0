"""The queues here that have no leader: how many, since when and why, for the log and for doors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

import trio

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.operations.node import Leaderless
from amqp10broker.raft.groups import Groups
from amqp10broker.raft.ids import SYSTEM_GROUP, node_of
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.cluster")

LOOK_EACH_S: Final = 1.0
TOLD_EACH_S: Final = 10.0
NAMES_MAX: Final = 5


class LeaderlessQueues:
    def __init__(self, catalog: Catalog, groups: Groups, name_of: Callable[[int], str]) -> None:
        self._catalog = catalog
        self._groups = groups
        self._name_of = name_of
        self._since: float | None = None
        self._told: float | None = None

    def found(self) -> Leaderless | None:
        """Return a note; None if every queue with a member here has a leader."""
        groups = self._groups
        lacking = {member.group for member in groups if member.lacks_leader and member.group != SYSTEM_GROUP}
        if not lacking:
            return None
        stuck, missing = 0, set[int]()
        for group in lacking:
            member = groups.get(group)
            voters = () if member is None else member.raft.config.voters
            away = [node_of(voter) for voter in voters if node_of(voter) in groups.suspected]
            if 2 * (len(voters) - len(away)) <= len(voters):
                stuck += 1
                missing.update(away)
        named = (f"{queue.name} in {queue.vhost}" for queue in self._catalog if queue.number in lacking)
        return Leaderless(
            len(lacking),
            tuple(islice(named, NAMES_MAX)),
            stuck,
            tuple(map(self._name_of, sorted(missing))),
            groups.elections if groups.elects else None,
            0.0 if self._since is None else trio.current_time() - self._since,
        )

    async def run(self) -> None:
        """Log the beginning, duration and end of the condition, until cancelled."""
        while True:
            await trio.sleep(LOOK_EACH_S)
            self._look()

    def _look(self) -> None:
        now = trio.current_time()
        if not any(member.lacks_leader for member in self._groups):
            if self._since is not None and self._told is not None:
                _log.info("every queue here has a leader", after_s=round(now - self._since, 1))
            self._since = self._told = None
        elif self._since is None:
            self._since = now  # most elections are over at the next look
        elif (self._told is None or now - self._told >= TOLD_EACH_S) and (found := self.found()) is not None:
            self._told = now
            _log.warning(
                "queues have no leader",
                queues=found.queues,
                names=", ".join(found.names),
                reason=found.reason,
            )
