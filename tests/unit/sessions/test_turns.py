"""Turns of sessions, and what is counted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain

import pytest

from amqp10broker.queues.commands import Publish
from amqp10broker.sessions.amqp10 import session as sessions
from amqp10broker.sessions.context import LARGE_PIECE_BYTES, LARGE_WRITES_MAX, WRITES_MAX, SessionEndpoint
from amqp10broker.sessions.counters import (
    DURATIONS_MS,
    FORGET_AT_LEAST,
    SIZES,
    ClientCounters,
    CountersOwner,
    Measures,
    MessageSizes,
    Moment,
    Totals,
)
from amqp10broker.sessions.messages import SessionMessage
from tests.support.scenario import Scenario, content
from tests.support.scripted_queue import ScriptedQueue

BUFFER = 65_536


class Much(SessionEndpoint):
    """A side that never runs out of deliveries: a buffer of pieces each time."""

    has_unsent = True

    def __init__(self, piece_bytes: Sequence[int]) -> None:
        super().__init__(Moment())
        self._sizes = iter(piece_bytes)
        self._out: list[bytes] = []

    def handle(self, letter: SessionMessage) -> None:
        raise AssertionError("no letters come")

    def pump(self, budget_bytes: int) -> int:
        size = next(self._sizes)
        self._out = [bytes(size)] * max(1, budget_bytes // size)
        return sum(map(len, self._out))

    def take_output(self) -> Sequence[bytes]:
        return self._out

    def counted(self) -> ClientCounters:
        raise AssertionError("it has no counters")

    def close(self) -> None:
        raise AssertionError("it does not end")

    release = close


class Socket:
    """An outlet that takes all, or so many buffers."""

    def __init__(self, buffers: int = 1000) -> None:
        self._left = buffers
        self.writes = 0
        self.wanted = 0

    @property
    def room(self) -> int:
        return BUFFER if self.writes < self._left else 0

    def put(self, pieces: Sequence[bytes | memoryview], transfer_bytes: int = 0) -> None:
        assert transfer_bytes == sum(map(len, pieces))
        self.writes += 1

    def want(self) -> None:
        self.wanted += 1


@pytest.mark.parametrize(
    ("pieces", "writes"),
    [
        ([100] * 99, WRITES_MAX),
        ([LARGE_PIECE_BYTES - 1] * 99, WRITES_MAX),
        ([LARGE_PIECE_BYTES] * 99, LARGE_WRITES_MAX),
        ([131_072] * 99, LARGE_WRITES_MAX),
        ([131_072] * 7 + [100] * 99, 8),
    ],
    ids=["small", "hardly large", "large", "a message a write", "small behind large ones"],
)
def test_a_turn_has_more_writes_of_large_messages(pieces: list[int], writes: int) -> None:
    """Each costs little, and consumers must keep up with reads that bring many at once."""
    outlet = Socket()
    Much(pieces).write_output(outlet)
    assert (outlet.writes, outlet.wanted) == (writes, 1)


@pytest.mark.parametrize("buffers", [0, 1, 5])
def test_a_turn_ends_where_the_socket_takes_no_more(buffers: int) -> None:
    outlet = Socket(buffers)
    Much([131_072] * 99).write_output(outlet)
    # With no room the side is asked all the same: for answers.
    assert (outlet.writes, outlet.wanted) == (max(1, buffers), 1)


LINKS = 3
FIRST = 1000
"""Delivery-ids that take as many bytes as most do: a layout holds for them."""


def _scene(*targets: str, settled: bool = True) -> Scenario:
    """Return a link for each target; each has sent a first message, whose layout is learned."""
    scene = Scenario("a", "b", "c")
    mode = "settled" if settled else "unsettled"
    for handle, target in enumerate(targets):
        scene.sender(target, handle, snd_settle_mode=mode)
        scene.publish(
            content("first", to="/queues/a"), handle, did=FIRST + handle, settled=str(settled).lower()
        )
    return scene


def _puppets(scene: Scenario) -> dict[str, ScriptedQueue]:
    return {name: ScriptedQueue(name, box, box.inbox) for name, box in scene.world.queues.items()}


def _in_one_read(
    scene: Scenario, sent: list[tuple[int, bytes]], *, settled: bool = True, again: int | None = None
) -> list[str]:
    lines = [
        f"TRANSFER h={handle} did={FIRST + LINKS + place - (place == again)} settled={str(settled).lower()}"
        f" payload={each.hex()}"
        for place, (handle, each) in enumerate(sent)
    ]
    return scene.do("C> " + " ; ".join(lines))


def _turns(count: int, links: int = LINKS) -> list[tuple[int, bytes]]:
    return [(number % links, content(f"m{number}", to="/queues/a")) for number in range(count)]


def _publishes(puppet: ScriptedQueue) -> list[list[bytes]]:
    return [[body for _, body in each.messages] for each in puppet.told_only(Publish)]


@pytest.mark.parametrize("settled", [True, False])
def test_what_goes_to_queues_of_their_own_is_one_publish_for_each(settled: bool) -> None:
    scene = _scene("/queues/a", "/queues/b", "/queues/c", settled=settled)
    puppets = _puppets(scene)
    sent = _turns(30)
    _in_one_read(scene, sent, settled=settled)
    for handle, puppet in enumerate(puppets.values()):
        (publish,) = _publishes(puppet)
        assert len(publish) == 10
        assert all(
            own.endswith(payload[-4:]) for own, (_, payload) in zip(publish, sent[handle::LINKS], strict=True)
        )


@pytest.mark.parametrize(
    "targets",
    [
        ("/queues/a", "/queues/b", "/queues/a"),
        ("/queues/a", "/queues/b", None),
        ("/queues/a", "/queues/b", "/exchanges/amq.fanout"),
    ],
    ids=["two links, one queue", "anonymous terminus", "exchange"],
)
def test_what_may_meet_in_a_queue_stays_in_the_order_of_the_session(targets: tuple[str | None, ...]) -> None:
    scene = _scene(*map(str, filter(None, targets)))
    if None in targets:
        scene.sender(None, 2, snd_settle_mode="settled")
        scene.publish(content("first", to="/queues/a"), 2, did=FIRST + 2, settled="true")
    puppets = _puppets(scene)
    _in_one_read(scene, _turns(30))
    told = {name: _publishes(puppet) for name, puppet in puppets.items()}
    assert [len(each) for each in told["b"]] == [1] * 10
    to_a = [body for publish in told["a"] for body in publish]
    numbers = [
        number for number in range(30) if number % 3 == 0 or (number % 3 == 2 and "amq" not in str(targets))
    ]
    assert [body.rpartition(b"m")[2].decode() for body in to_a] == [str(number) for number in numbers]


def test_a_session_that_is_watched_shows_frames_as_they_came() -> None:
    class Tap:
        def __init__(self) -> None:
            self.items: list[object] = []

        def received(self, item: object) -> None:
            self.items.append(item)

        def sent(self, frame: bytes) -> None:
            """Not of interest."""

    scene = _scene("/queues/a", "/queues/b", "/queues/c")
    tap = Tap()
    scene.world.clients["C"].sessions[0].service.session.output.tap = tap  # type: ignore[assignment]
    _in_one_read(scene, _turns(30))
    assert len(tap.items) == 30


@pytest.mark.parametrize("seed", range(40))
def test_queues_get_the_same_as_one_frame_after_the_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes faults: deliveries before a fault and those of other links arrive; the link ends."""
    rng = random.Random(seed)
    targets = (
        [f"/queues/{rng.choice('aabc')}" for _ in range(LINKS)]
        if seed % 2
        else ["/queues/a", "/queues/b", "/queues/c"]
    )
    settled = rng.random() < 0.5
    sent = []
    for number in range(40):
        bad = rng.random() < 0.02
        sent.append((rng.randrange(LINKS), b"\xff" if bad else content(f"m{number}", to="/queues/a")))
    again = rng.randrange(1, 40) if rng.random() < 0.5 else None
    found = []
    for least in (sessions.INTERLEAVED_MIN, 10**9):
        monkeypatch.setattr(sessions, "INTERLEAVED_MIN", least)
        scene = _scene(*targets, settled=settled)
        puppets = _puppets(scene)
        came = _in_one_read(scene, sent, settled=settled, again=again)
        ends = sorted(line for line in came if "DETACH" in line or "END" in line)
        told = {name: [*chain.from_iterable(_publishes(each))] for name, each in puppets.items()}
        found.append((ends, told))
    assert found[0] == found[1]
    assert sum(map(len, found[0][1].values()))


def test_sizes_of_messages_are_counted_exactly_however_many_different_ones_there_are() -> None:
    sizes = MessageSizes()
    for size in range(1_000):
        sizes.count([bytes(size)] * 2)
    counts = sizes.histogram.counts
    assert counts[:3] == [202, 1_798, 0]
    assert sum(counts) == 2_000
    assert sizes.histogram.sum == 2 * sum(range(1_000))
    sizes.count([b"one more"])
    assert sum(sizes.histogram.counts) == 2_001
    sizes.count([b"x", b"x" * 150, b"x"])
    sizes.count([])
    assert sizes.histogram.counts[:2] == [205, 1_799]


def test_measures_of_connections_that_have_ended_are_added() -> None:
    one, all_of_them = Measures(), Measures()
    one.receiver_credit_zero.count(5)
    one.message_sizes.count([b"x" * 101])
    all_of_them.add(one)
    all_of_them.add(one)
    assert all_of_them.receiver_credit_zero.counts == [0, 2] + [0] * (len(DURATIONS_MS) - 1)
    assert all_of_them.message_sizes.histogram.counts == [0, 2] + [0] * (len(SIZES) - 1)
    assert all_of_them.sender_credit_zero.sum == 0


def published(messages: int) -> ClientCounters:
    counters = ClientCounters()
    counters.published = messages
    return counters


def shown(sums: tuple[dict[str, ClientCounters], ...]) -> list[dict[str, int]]:
    return [{name: each.published for name, each in total.items()} for total in sums]


def test_what_was_deleted_counts_for_the_others() -> None:
    """They do not count again for a later owner of the name."""
    totals = Totals()
    totals.add(CountersOwner("a", "v", "ann"), published(1), {"ann"}, {"v"})
    assert shown(totals.by([], {"ann"}, set())) == [{"a": 1}, {}, {"ann": 1}]
    assert shown(totals.by([], set(), {"v"})) == [{"a": 1}, {}, {}]
    assert shown(totals.by([], {"ann"}, {"v"})) == [{"a": 1}, {}, {}]


def test_names_that_were_deleted_are_not_kept() -> None:
    """Otherwise tests that make a virtual host each would fill the memory."""
    totals = Totals()
    for number in range(10 * FORGET_AT_LEAST):
        totals.add(CountersOwner("a", f"v{number}", "ann"), published(1), {"ann"}, {f"v{number}"})
    assert len(totals._gone) <= 2 * FORGET_AT_LEAST
    assert shown(totals.by([], {"ann"}, set())) == [
        {"a": 10 * FORGET_AT_LEAST},
        {},
        {"ann": 10 * FORGET_AT_LEAST},
    ]
