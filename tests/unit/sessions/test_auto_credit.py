"""Link credit that finds its own size, in virtual time: `tests/support/credit_loop.py`."""

from __future__ import annotations

from functools import partial

import pytest

from amqp10broker.observe.flow import Observer, session_samples
from amqp10broker.observe.flow_events import EventKind, LimitReason
from amqp10broker.protocols.amqp10.credit import ReceiverCredit
from amqp10broker.sessions.credit import AutoCredit, AutoLimit, Why
from amqp10broker.sessions.diagnosis.wait_reasons import WaitContext
from amqp10broker.sessions.diagnosis.why_link import session_view
from tests.support.credit_loop import BASE, Conditions, CreditLoop
from tests.support.scenario import Scenario
from tests.support.watching import Seen

SWEEP = (340, 680, 1_360, 2_720, 5_440, 10_880, 16_384)
WARM_MS = 4_000
MEASURED_MS = 2_000


def rate(conditions: Conditions, fixed: int | None = None, **bounds: int) -> float:
    loop = CreditLoop(conditions, fixed=fixed, **bounds)
    loop.run(WARM_MS)
    return loop.run(MEASURED_MS)


@pytest.mark.parametrize(
    "conditions",
    [Conditions(delay_ms=10), Conditions(delay_ms=25), Conditions(confirm_ms=20), Conditions(confirm_ms=100)],
    ids=["round trip 20 ms", "round trip 50 ms", "confirms after 20 ms", "confirms after 100 ms"],
)
def test_latency_is_bridged_as_by_the_best_fixed_limit(conditions: Conditions) -> None:
    """It is at least twice the default's rate, and within 15 % of the best of a sweep."""
    auto = rate(conditions)
    assert auto >= 2 * rate(conditions, BASE)
    assert auto >= 0.85 * max(rate(conditions, fixed) for fixed in SWEEP)


def test_without_latency_nothing_is_to_be_gained_and_nothing_is_lost() -> None:
    """An increase tried in vain is taken back, and the rate is the default's."""
    conditions = Conditions()
    loop = CreditLoop(conditions)
    loop.run(WARM_MS)
    assert loop.run(MEASURED_MS) >= 0.95 * rate(conditions, BASE)
    assert loop.limits[-1] == BASE


def test_a_client_that_is_slow_itself_gets_no_more_credit() -> None:
    """Ten messages a millisecond are no reason for credit when it never runs out."""
    loop = CreditLoop(Conditions(delay_ms=2, pace=10))
    loop.run(3_000)
    assert set(loop.limits) == {BASE}
    assert set(loop.whys) == {Why.DEFAULT}


def test_a_queue_that_does_not_follow_gets_no_more_than_before() -> None:
    """More credit would only make it wait: each try is taken back, and tries become rare."""
    loop = CreditLoop(Conditions(confirms_per_ms=1))
    loop.run(60_000)
    assert max(loop.limits) == 2 * BASE
    assert loop.whys[-1] is Why.NO_GAIN
    share = sum(limit > BASE for limit in loop.limits[30_000:]) / 30_000
    assert share < 0.2


def test_it_shrinks_when_confirms_become_slow_and_leads_back() -> None:
    """Credit that pays at a round trip of 20 ms only waits at a queue that has become slow."""
    loop = CreditLoop(Conditions(delay_ms=10))
    fast = loop.run(4_000)
    grown = loop.limits[-1]
    assert grown >= 2_000
    loop.conditions.confirms_per_ms = 1
    loop.run(10_000)
    assert Why.CONFIRMS_SLOW in loop.whys[-10_000:]
    assert loop.limits[-1] <= grown // 4
    loop.conditions.confirms_per_ms = 1e9
    loop.run(15_000)
    assert loop.run(2_000) >= 0.85 * fast


def test_it_is_the_default_while_memory_is_tight_and_leads_back() -> None:
    loop = CreditLoop(Conditions(delay_ms=10))
    loop.run(3_000)
    assert loop.limits[-1] > BASE
    loop.conditions.tight = True
    loop.run(2_000)
    assert (loop.limits[-1], loop.whys[-1]) == (BASE, Why.MEMORY_TIGHT)
    assert set(loop.limits[-500:]) == {BASE}
    loop.conditions.tight = False
    loop.run(6_000)
    assert loop.limits[-1] > 2_000


def test_it_says_which_bound_it_has_come_to() -> None:
    """The bound is messages or bytes; large messages lower it at once."""
    loop = CreditLoop(Conditions(delay_ms=25), most=1_000)
    loop.run(3_000)
    assert (loop.limits[-1], loop.whys[-1]) == (1_000, Why.MESSAGES_BOUND)
    loop = CreditLoop(Conditions(delay_ms=25), most_bytes=100_000)
    loop.run(3_000)
    assert (loop.limits[-1], loop.whys[-1]) == (100_000 // 101, Why.BYTES_BOUND)
    loop.conditions.size = 500
    loop.run(100)
    assert (loop.limits[-1], loop.whys[-1]) == (100_000 // 501, Why.BYTES_BOUND)


def test_the_default_is_allowed_whatever_the_bounds() -> None:
    """With messages of a megabyte it is as if nothing were automatic."""
    loop = CreditLoop(Conditions(delay_ms=10, size=1_000_000))
    loop.run(1_000)
    assert set(loop.limits) == {BASE}


def test_growing_says_so_and_since_when() -> None:
    loop = CreditLoop(Conditions(delay_ms=10))
    while loop.step() is None and loop.whys[-1] is Why.DEFAULT:
        assert loop.now_ms < 1_000
    assert loop.auto is not None
    assert (loop.whys[-1], loop.limits[-1]) == (Why.GROWING, 2 * BASE)
    assert loop.auto.auto.since_ms == loop.now_ms


def counted(credit: ReceiverCredit, auto: AutoCredit, now_ms: int, count: int, *, held: bool = False) -> None:
    credit.receive(count)
    auto.received(now_ms, count, count, held_back=held)
    credit.finish(count)
    auto.answered(now_ms, count)


@pytest.mark.parametrize(
    ("batch", "held", "grows"),
    [(170, False, True), (160, False, False), (170, True, False)],
    ids=["stops where the grant ends", "stops before", "stops there during an alarm"],
)
def test_only_a_client_that_stops_where_its_grant_ends_is_held_up_by_credit(
    batch: int, held: bool, grows: bool
) -> None:
    """A stop elsewhere means no messages or a closed window; an alarm holds publishers back by itself."""
    credit = ReceiverCredit(0, BASE)
    credit.top_up()
    auto = AutoCredit(credit, AutoLimit(BASE, 10_000, 1 << 20, 0), credit.top_up)
    for turn in range(1, 40):
        counted(credit, auto, 50 * turn, batch, held=held)
        if auto.auto.why is not Why.DEFAULT:
            break
    assert (auto.auto.why is Why.GROWING) is grows


def test_a_link_of_which_nothing_comes_any_more_keeps_its_limit_until_something_does() -> None:
    """An hour without messages is neither an hour of missing credit nor of slow confirms."""
    loop = CreditLoop(Conditions(delay_ms=10))
    loop.run(4_000)
    before, loop.conditions.pace = loop.limits[-1], 0
    loop.run(20_000)
    assert loop.limits[-1] == before
    loop.conditions.pace = 100
    loop.run(5_000)
    assert loop.run(1_000) >= 85


# --- what a session asks of a queue, and its window -----------------------------------------------


class FarQueue:
    """A consumer with much credit at a queue that is some milliseconds away.

    Attributes:
        asked: how much the queue was asked for, each time.
    """

    def __init__(self, messages: int, *settings: str, credit: int = 1_000_000) -> None:
        self.scene = Scenario("q")
        self.scene.do(*settings, f"publish q {messages}")
        self.world = self.scene.world
        self.queue = self.world.queues["q"]
        self.queue.muted = True
        self.scene.do("C> ATTACH h=0 name=out role=receiver source=/queues/q")
        self.service = self.world.clients["C"].sessions[0].service
        self.scene.do(f"C> FLOW h=0 dc=0 cr={credit} iw=1000000")
        self.asked: list[int] = []

    @property
    def link(self) -> tuple[int | None, str | None]:
        (link,) = session_view(self.service, WaitContext()).links
        return link.credit_limit, link.credit_limit_why

    @property
    def received(self) -> int:
        (consumer,) = self.service.consumers
        return consumer.credit.written

    def round(self, ms: int) -> int:
        """Let one answer of the queue come; return how many messages the client got by it."""
        (consumer,) = self.service.consumers
        before = self.received
        self.service.moment.ms += ms
        self.queue.muted = False
        self.queue.wake()
        self.queue.muted = True
        self.world.settle()
        self.world.take_trace()
        self.asked.append(consumer.credit.granted)
        return self.received - before


def test_a_far_queue_is_asked_for_more_at_a_time() -> None:
    """Requests grow as long as that raises the rate; the status has their size."""
    far = FarQueue(30_000, "set max_queue_credit auto")
    assert far.link == (256, "default")
    got = [far.round(20) for _ in range(40)]
    assert set(got[1:5]) == {256}
    assert far.link[0] is not None
    assert far.link[0] >= 1_024
    assert max(got) >= 1_024
    assert max(far.asked) == far.link[0]


@pytest.mark.parametrize(
    ("ms", "credit"), [(0, 1_000_000), (20, 200)], ids=["a near queue", "a client that takes no more"]
)
def test_a_queue_is_asked_for_no_more_where_that_holds_nothing_up(ms: int, credit: int) -> None:
    """Messages arrive at once, or the client has no credit for more."""
    far = FarQueue(20_000, "set max_queue_credit auto", credit=credit)
    for turn in range(1, 30):
        got = far.round(ms)
        far.scene.do(f"C> FLOW h=0 dc={far.received} cr={credit} iw=1000000")
        assert got <= 256, turn
    assert far.link == (256, "default")


def test_queue_credit_is_fixed_again_when_it_is_a_number() -> None:
    far = FarQueue(30_000, "set max_queue_credit auto")
    for _ in range(12):
        far.round(20)
    far.scene.do("set max_queue_credit 100")
    assert far.link == (100, None)
    far.round(20)
    assert far.round(20) == 100


def windows(scene: Scenario) -> int:
    return session_view(scene.world.clients["C"].sessions[0].service, WaitContext()).incoming_window_limit


def test_an_automatic_window_is_twice_what_the_credit_of_its_links_may_be() -> None:
    """So it holds none of them up; it is never below the default, and bounded."""
    scene = Scenario("q")
    scene.do("set max_incoming_window auto")
    assert windows(scene) == 400
    scene.do("C> ATTACH h=0 name=a target=/queues/q")
    assert windows(scene) == 400
    scene.do("C> ATTACH h=1 name=b target=/queues/q")
    assert windows(scene) == 680
    scene.do("set max_link_credit 1000")
    assert windows(scene) == 4_000
    scene.do("C> DETACH h=0 closed=true")
    assert windows(scene) == 2_000
    scene.do("set max_link_credit 1000000")
    assert windows(scene) == 65_536
    scene.do("override address=/queues/q max_incoming_window=50")
    assert windows(scene) == 50


def test_an_automatic_window_grows_with_automatic_credit() -> None:
    scene = Scenario("q")
    scene.do(
        "set max_incoming_window auto", "set max_link_credit auto", "C> ATTACH h=0 name=a target=/queues/q"
    )
    service = scene.world.clients["C"].sessions[0].service
    sent = 0
    for _ in range(12):
        service.moment.ms += 50
        (link,) = session_view(service, WaitContext()).links
        scene.do(f"C> TRANSFER h=0 did={sent}..{sent + link.credit - 1} settled=true")
        sent += link.credit
    (link,) = session_view(service, WaitContext()).links
    assert link.credit_limit >= 340
    assert windows(scene) == 2 * link.credit_limit
    scene.do("alarm memory on")
    assert windows(scene) == 400
    (link,) = session_view(service, WaitContext()).links
    assert (link.credit_limit, link.credit_limit_why) == (170, "memory-tight")


def test_flow_events_tell_each_limit_once_and_why() -> None:
    far = FarQueue(30_000, "set max_queue_credit auto")
    seen = Seen()
    observer = Observer(partial(session_samples, far.service), 7, 0, seen.add, seen.link)
    for _ in range(12):
        far.round(20)
        seen.now_ns += 20_000_000
        observer.observe(seen.now_ns, seen.now_ns, WaitContext())
    told = [(event.link_credit, event.reason, event.handle) for event in seen.take(EventKind.LIMIT)]
    assert told[0] == (256, LimitReason.DEFAULT, 0)
    assert told[1] == (512, LimitReason.GROWING, 0)
    assert len(told) == len(set(told)) >= 3
    far.scene.do("set max_queue_credit 100")
    observer.observe(seen.now_ns, seen.now_ns, WaitContext(), whole=True)
    assert seen.take(EventKind.LIMIT) == []
