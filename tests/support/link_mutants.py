"""Faults that are planted into links, one at a time. Each must be caught by the worlds of `test_queue_links`.

Numbers are those of a list of 54 faults that the four tables share; names without one are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from amqp10broker.cluster.remote_queue.link import CatchUp, QueueLink
from amqp10broker.cluster.remote_queue.link_server import LinkServer
from amqp10broker.queues.commands import PublishRejected
from amqp10broker.queues.quorum.node_links import NodeLink, NodeLinks
from amqp10broker.queues.quorum.queue import QuorumQueue

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A fault; `seed` finds it soon: choose another one when it no longer does."""

    name: str
    plant: Plant
    seed: int = 0


def _carried_out_twice(patch: pytest.MonkeyPatch) -> None:
    def take(links: NodeLinks, letters: Any) -> bool:
        link = links.by_node.setdefault((letters.node, letters.incarnation), NodeLink())
        link.last = max(link.last, letters.last)
        return True

    received = LinkServer.received

    def again(server: LinkServer, node: int, batch: Any) -> None:
        link = server._links.get(node)
        if link is not None:
            server._posted[node, link.incarnation] = batch.first - 1
        received(server, node, batch)

    resume = LinkServer.resume

    def at_once(server: LinkServer, node: int, asked: Any) -> None:
        server._posted.clear()  # what is on its way is not waited for, either
        resume(server, node, asked)

    patch.setattr(NodeLinks, "take", take)
    patch.setattr(LinkServer, "received", again)
    patch.setattr(LinkServer, "resume", at_once)


def _gap_accepted(patch: pytest.MonkeyPatch) -> None:
    def take(links: NodeLinks, letters: Any) -> bool:
        link = links.by_node.setdefault((letters.node, letters.incarnation), NodeLink())
        if letters.first <= link.last:
            return False
        link.last = letters.last
        return True

    received = LinkServer.received
    seen = [0]

    def with_gaps(server: LinkServer, node: int, batch: Any) -> None:
        link = server._links.get(node)
        seen[0] += 1
        if link is not None:
            if seen[0] % 20 == 0:
                return  # it is lost, whoever loses it
            server._posted[node, link.incarnation] = batch.first - 1
        received(server, node, batch)

    patch.setattr(NodeLinks, "take", take)
    patch.setattr(LinkServer, "received", with_gaps)


def _sent_out_of_order(patch: pytest.MonkeyPatch) -> None:
    resumed = QueueLink.resumed

    def reversed_rest(client: QueueLink, node: int, answer: Any) -> None:
        rest = [each for each in client._commands if each.number > answer.last]
        commands = [each.command for each in rest]
        for letter, command in zip(rest, reversed(commands), strict=True):
            letter.command = command
        resumed(client, node, answer)

    patch.setattr(QueueLink, "resumed", reversed_rest)


def _resume(change: Callable[[QuorumQueue, Any], Any]) -> Plant:
    resume = QuorumQueue.resume

    def plant(patch: pytest.MonkeyPatch) -> None:
        def changed(
            queue: QuorumQueue, node: int, incarnation: int, heard: int, seen: Mapping[Any, int]
        ) -> Any:
            return change(queue, resume(queue, node, incarnation, heard, seen))

        patch.setattr(QuorumQueue, "resume", changed)

    return plant


def _seen_again(patch: pytest.MonkeyPatch) -> None:
    resume = QuorumQueue.resume

    def changed(queue: QuorumQueue, node: int, incarnation: int, heard: int, seen: Mapping[Any, int]) -> Any:
        return resume(queue, node, incarnation, heard, {})

    patch.setattr(QuorumQueue, "resume", changed)


def _without_settled(queue: QuorumQueue, found: Any) -> Any:
    by_ref = queue.parts()[1].by_ref
    return replace(found, deliveries=[each for each in found.deliveries if not by_ref[each.consumer].settled])


def _without_refused(queue: QuorumQueue, found: Any) -> Any:
    return replace(found, kept=[each for each in found.kept if not isinstance(each[2], PublishRejected)])


def _nothing_missed(queue: QuorumQueue, found: Any) -> Any:
    return replace(found, consumers={ref: replace(each, missed=0) for ref, each in found.consumers.items()})


def _late_subscription_stays(patch: pytest.MonkeyPatch) -> None:
    give_up, put = QueueLink._give_up, QueueLink._put

    def without_end(client: QueueLink, letter: Any, out: Any, now_ms: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(
                QueueLink, "_put", lambda link, command, at: link._consumers.pop(command.consumer, None)
            )
            give_up(client, letter, out, now_ms)
        assert QueueLink._put is put

    patch.setattr(QueueLink, "_give_up", without_end)


def _unanswered_credit(patch: pytest.MonkeyPatch) -> None:
    answer = CatchUp._answer

    def without_credit(catch_up: CatchUp, letter: Any) -> None:
        if type(letter.command).__name__ != "Credit":
            answer(catch_up, letter)

    patch.setattr(CatchUp, "_answer", without_credit)


def _nobody_is_active(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CatchUp, "_bring_up_to_date", lambda *_, **__: None)


MUTANTS = (
    Mutant("28_carried_out_twice", _carried_out_twice, 40),
    Mutant("29_gap_accepted", _gap_accepted),
    Mutant("30_sent_out_of_order", _sent_out_of_order),
    Mutant("31_seen_is_sent_again", _seen_again),
    Mutant("32_settled_consumers_forgotten", _resume(_without_settled), 2),
    Mutant("53_refused_is_confirmed", _resume(_without_refused), 13),
    Mutant("54_late_subscription_stays", _late_subscription_stays, 4),
    Mutant("missed_deliveries_not_counted", _resume(_nothing_missed), 26),
    Mutant("credit_is_not_answered", _unanswered_credit),
    Mutant("who_is_active_is_not_told", _nobody_is_active),
)
