"""Histories of clusters are judged rightly."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.cluster_history import TotalQueue
from tests.support.crash_history import make_body
from tests.support.linearizable import Kind, check, is_explained
from tests.support.metadata_histories import BAD, GOOD, read, simulated


def history() -> TotalQueue:
    """Return a correct history of two publishers and two consumers; one of these loses its connection."""
    queue = TotalQueue("q")
    for number in range(1, 7):
        for life in ("a", "b"):
            queue.publish(f"{life}:{number}")
            if number != 6:
                queue.answer(f"{life}:{number}", accepted=True)
    for name in ("a:1", "a:2"):
        give(queue, "one", name)
    give(queue, "two", "b:1")
    queue.remove("one", "a:1")
    queue.was_removed("a:1")
    queue.lose("one")
    give(queue, "two", "a:2", redelivered=True, count=1)
    queue.remove("two", "a:2")
    # Given back, and had again.
    give(queue, "three", "b:1", redelivered=True, count=1)
    queue.give_back("three", "b:1")
    give(queue, "two", "b:1", redelivered=True, count=2)
    queue.give_back("two", "b:1")
    give(queue, "three", "b:1", redelivered=True, count=3)
    queue.remove("three", "b:1")
    found = ["a:3", "b:2", "b:3", "a:4", "a:5", "b:4", "b:5", "b:6"]
    queue.look([(name, False) for name in found])
    return queue


def give(queue: TotalQueue, life: str, name: str, *, redelivered: bool = False, count: int = 0) -> None:
    queue.deliver(life, make_body(name), redelivered=redelivered, count=count)


def content(queue: TotalQueue) -> list[tuple[str, bool]]:
    assert queue.content is not None
    return queue.content


def lose_one(queue: TotalQueue) -> None:
    content(queue).remove(("a:4", False))


def lose_one_that_a_lost_client_had(queue: TotalQueue) -> None:
    give(queue, "one", "a:3")
    content(queue).remove(("a:3", False))


def invent_one(queue: TotalQueue) -> None:
    content(queue).append(("c:1", False))


def have_one_twice(queue: TotalQueue) -> None:
    content(queue).append(("b:6", True))


def give_one_unmarked(queue: TotalQueue) -> None:
    give(queue, "three", "b:1", count=1)


def put_one_in_again(queue: TotalQueue) -> None:
    """Publish the same message twice, as a link without its delivery numbers does."""
    give(queue, "three", "a:3")
    queue.remove("three", "a:3")


def bring_one_back(queue: TotalQueue) -> None:
    content(queue).append(("a:1", True))


def give_one_that_was_removed(queue: TotalQueue) -> None:
    give(queue, "two", "a:1", redelivered=True, count=1)


def refuse_one(queue: TotalQueue) -> None:
    queue.answer("a:6", accepted=False)


def refuse_one_that_was_confirmed(queue: TotalQueue) -> None:
    queue.may_refuse = True
    queue.answer("a:5", accepted=False)


def turn_two_round(queue: TotalQueue) -> None:
    found = content(queue)
    found[3], found[4] = found[4], found[3]


def turn_two_round_for_a_consumer(queue: TotalQueue) -> None:
    queue.lost.clear()
    give(queue, "two", "b:3")
    give(queue, "two", "b:2")
    content(queue)[1:3] = [("b:2", True), ("b:3", True)]


def give_one_to_two(queue: TotalQueue) -> None:
    give(queue, "two", "b:2", redelivered=True)
    give(queue, "three", "b:2", redelivered=True)
    queue.remove("two", "b:2")


def let_a_count_fall(queue: TotalQueue) -> None:
    give(queue, "two", "b:1", redelivered=True, count=0)


FAULTS = [
    (lose_one, "confirmed and lost: 1: a:4"),
    (lose_one_that_a_lost_client_had, "confirmed and lost: 1: a:3"),
    (invent_one, "from nowhere: 1: c:1"),
    (have_one_twice, "there twice: 1: b:6"),
    (give_one_unmarked, "given twice, and not marked as redelivered: 1: b:1"),
    (put_one_in_again, "given twice, and not marked as redelivered: 1: a:3"),
    (bring_one_back, "back after a confirmed settlement: 1: a:1"),
    (give_one_that_was_removed, "back after a confirmed settlement: 1: a:1"),
    (refuse_one, "refused: 1: a:6"),
    (refuse_one_that_was_confirmed, "refused and confirmed: 1: a:5"),
    (turn_two_round, "out of order for what is there: a:5 came before a:4"),
    (turn_two_round_for_a_consumer, "out of order for two: b:3 came before b:2"),
    (give_one_to_two, "with two at once: b:2 was with two, and given to three"),
    (let_a_count_fall, "the count of b:1 fell from 3 to 0"),
]


def test_a_good_history_has_no_faults() -> None:
    queue = history()
    queue.check()
    assert queue.marked == {"a:2", "b:1"}


@pytest.mark.parametrize(("plant", "fault"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_each_planted_fault_is_found(plant: Callable[[TotalQueue], None], fault: str) -> None:
    queue = history()
    plant(queue)
    assert fault in list(queue.faults())
    with pytest.raises(AssertionError, match=fault):
        queue.check()


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_is_explained(name: str) -> None:
    assert is_explained(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_not(name: str) -> None:
    assert not is_explained(BAD[name])


@pytest.mark.parametrize("seed", range(30))
def test_lives_of_a_simulated_cluster_are_explained(seed: int) -> None:
    check({"name": simulated(random.Random(seed), 60)})


@pytest.mark.parametrize("seed", range(30))
def test_one_reading_that_is_changed_is_noticed(seed: int) -> None:
    rng = random.Random(seed)
    operations = simulated(rng, 20)
    place = rng.choice([at for at, each in enumerate(operations) if each.kind is Kind.READ])
    was = operations[place]
    operations[place] = read("from nowhere", was.began, was.ended, was.node)
    with pytest.raises(AssertionError, match=r"(?s)nothing explains what was seen of 'name'.*from nowhere"):
        check({"name": operations})
