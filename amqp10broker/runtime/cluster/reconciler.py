"""Continuous reconciliation: quorum queues that are led here get the members that they should have."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

import trio

from amqp10broker.cluster.membership import MemberRole
from amqp10broker.cluster.reconcile import Grow, NodeState, Reconciling, Schedule, next_change, target_size
from amqp10broker.config import Config
from amqp10broker.errors import RefusedError
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.raft.groups import Groups
from amqp10broker.raft.ids import node_of
from amqp10broker.runtime.cluster.leader_changes import MovedAway
from amqp10broker.runtime.cluster.member_changes import MemberChanges
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.members")

CHANGE_S: Final = 20.0
"""How long one change may take (T5)."""
LOOK_S: Final = 1.0


def settings_of(config: Config) -> Reconciling:
    return Reconciling(
        config.quorum_reconciliation,
        config.quorum_reconciliation_target_group_size,
        config.quorum_reconciliation_auto_remove,
        config.quorum_reconciliation_interval_ms,
        config.quorum_reconciliation_trigger_interval_ms,
    )


class Reconciler:
    def __init__(
        self,
        me: int,
        catalog: Catalog,
        groups: Groups,
        changes: MemberChanges,
        settings: Reconciling,
    ) -> None:
        self._me = me
        self._catalog = catalog
        self._groups = groups
        self._changes = changes
        self._settings = settings
        self._schedule = Schedule(settings, self._now_ms())

    def trigger(self) -> None:
        """A node has come up or has left for good, a queue was declared, or a policy set."""
        self._schedule.trigger(self._now_ms())

    async def run(self) -> None:
        """Make rounds when they are due, until cancelled; off, there are none."""
        while self._settings.enabled:
            due_ms = self._schedule.due_ms
            if due_ms is not None and due_ms <= self._now_ms():
                self._schedule.ran(self._now_ms(), unfinished=await self.round())
            await trio.sleep(
                LOOK_S if due_ms is None else min(LOOK_S, max(0.01, due_ms / 1000 - self._now()))
            )

    async def round(self) -> bool:
        """Look once at every queue that is led here; whether something was to be done, and may be still."""
        unfinished = False
        short: list[DeclaredQueue] = []
        for queue in list(self._catalog):
            member = self._groups.get(queue.number) if queue.members else None
            if member is None or not member.leads or self._groups.backward:
                continue
            target = self._target(queue)
            change = next_change(
                queue.members,
                self._nodes(),
                target,
                auto_remove=self._settings.auto_remove,
                random_source=random.random,
            )
            if change is None:
                if len(queue.members) < target:
                    short.append(queue)
                continue
            nodes = [change.node] if isinstance(change, Grow) else [node_of(each) for each in change.members]
            unfinished = True
            for node in nodes:
                await self._change(queue, node, grow=isinstance(change, Grow))
        if short:
            _log.warning(
                "queues have fewer members than their target",
                queues=len(short),
                one_of_them=short[0].name,
                vhost=short[0].vhost,
                members=len(short[0].members),
                target=self._target(short[0]),
                reason="no other node of the cluster runs and may be given more, or most members do not run",
            )
        return unfinished

    async def _change(self, queue: DeclaredQueue, node: int, *, grow: bool) -> None:
        try:
            if grow:
                kind = MemberRole.PROMOTABLE
                await self._changes.add(queue, node, kind, CHANGE_S, among_voters=True)
            else:
                await self._changes.remove(queue, node, CHANGE_S)
        except (RefusedError, MovedAway) as error:
            _log.info("reconciliation is put off", queue=queue.name, vhost=queue.vhost, reason=str(error))
            return
        done = "member added" if grow else "member removed"
        _log.info(
            f"{done} by reconciliation",
            queue=queue.name,
            vhost=queue.vhost,
            node=self._catalog.node_name(node),
        )

    def _nodes(self) -> Mapping[int, NodeState]:
        return {
            node.number: NodeState(
                node.number == self._me or node.number not in self._groups.suspected, node.draining
            )
            for node in self._catalog.nodes.values()
        }

    def _target(self, queue: DeclaredQueue) -> int:
        return target_size(
            self._settings.target_group_size,
            queue.effective.definition.get("target-group-size"),
            queue.arguments.get("x-quorum-target-group-size"),
        )

    def _now(self) -> float:
        return trio.current_time()

    def _now_ms(self) -> int:
        return int(self._now() * 1000)
