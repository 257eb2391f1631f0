"""Publishes of one publisher that follow each other are carried out as one."""

from __future__ import annotations

from amqp10broker.queues.commands import JOINED_MAX, Publish, PublisherRef, Tick
from amqp10broker.queues.quorum.commands import QuorumCommand, joined
from tests.support.askers import new_asker
from tests.support.quorum_bench import message

SESSION = new_asker("s")
ONE, TWO = SESSION.publisher(), SESSION.publisher()


def publish(publisher: PublisherRef, *numbers: int, settled: bool = False) -> Publish:
    return Publish(publisher, numbers, [message(str(number)) for number in numbers], settled)


def plain(commands: list[QuorumCommand]) -> list[object]:
    return [
        (each.publisher, list(each.ids), [body.decode() for _, body in each.messages], each.settled)
        if isinstance(each, Publish)
        else each
        for each in commands
    ]


def test_neighbours_of_one_publisher_are_one() -> None:
    first = publish(ONE, 1)
    found = joined([first, publish(ONE, 2, 3), publish(ONE, 4)])
    assert plain(found) == [(ONE, [1, 2, 3, 4], ["1", "2", "3", "4"], False)]
    assert list(first.ids) == [1], "what others gave is not changed"


def test_others_stay_apart_and_in_order() -> None:
    tick = Tick()
    commands: list[QuorumCommand] = [
        publish(ONE, 1),
        publish(TWO, 1),
        publish(ONE, 2),
        tick,
        publish(ONE, 3),
        publish(ONE, 4, settled=True),
    ]
    assert plain(joined(commands)) == plain(commands)


def test_a_run_ends_when_it_is_long_enough() -> None:
    many = publish(ONE, *range(JOINED_MAX))
    assert joined([many, publish(ONE, 1)])[0] is many
