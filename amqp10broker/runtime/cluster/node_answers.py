"""Answers to other nodes about queues of this one, and operations executed on their behalf."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from amqp10broker.cluster.asking import Document
from amqp10broker.cluster.membership import MemberRole
from amqp10broker.errors import RefusedError
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.operations.registry import OPERATIONS
from amqp10broker.raft.groups import Groups
from amqp10broker.runtime.cluster.leader_changes import MovedAway, transfer
from amqp10broker.runtime.cluster.member_changes import MemberChanges
from amqp10broker.runtime.cluster.member_states import state_of

Answer = Callable[[int, Document], Awaitable[Document]]


class NodeAnswers:
    def __init__(
        self,
        catalog: Catalog,
        groups: Groups,
        changes: MemberChanges,
        run: Callable[[str, Mapping[str, Any], str | None], Awaitable[Any]],
    ) -> None:
        self._catalog = catalog
        self._groups = groups
        self._changes = changes
        self._run = run
        self.by_what: dict[str, Answer] = {
            "change-members": self._change_members,
            "member-state": self._member_state,
            "operation": self._operation,
        }

    async def _change_members(self, node: int, question: Document) -> Document:
        queue = next((each for each in self._catalog if each.number == question["queue"]), None)
        if queue is None:
            return {"moved": True}  # it is not known here yet, or not any more
        where, timeout_s = int(question["node"]), float(question["timeout_s"])
        try:
            match question["change"]:
                case "add":
                    size = await self._changes.add(
                        queue,
                        where,
                        MemberRole(question["membership"]),
                        timeout_s,
                        among_voters=bool(question["among_voters"]),
                    )
                case "remove":
                    size = await self._changes.remove(queue, where, timeout_s)
                case _:
                    await transfer(self._groups, queue, where)
                    size = len(queue.members)
        except MovedAway:
            return {"moved": True}
        return {"size": size}

    async def _member_state(self, node: int, question: Document) -> Document:
        return asdict(state_of(self._groups.get(int(question["group"]))))

    async def _operation(self, node: int, question: Document) -> Document:
        name = question["name"]
        if name not in OPERATIONS:
            raise RefusedError("operation", f"this node knows no operation '{name}'")
        result = await self._run(name, question["given"], question["vhost"])
        # As the door of the administration socket would write it: some values have no form in JSON.
        return {"result": json.loads(json.dumps(result, default=str))}
