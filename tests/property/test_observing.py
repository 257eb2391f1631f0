"""Whatever clients and queues do: observers tell every delivery once, and every moment once.

A session of AMQP 1.0 with a publisher and two consumers on one queue, that confirms late or stands still,
and a channel of AMQP 0-9-1 likewise; observed after some steps, and probed from some of them on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.observe.flow import Observer, channel_samples, session_samples
from amqp10broker.observe.flow_events import EventKind
from amqp10broker.protocols.amqp091.methods import BasicAck, BasicCancel, BasicQos, ConfirmSelect
from amqp10broker.sessions.diagnosis.wait_reasons import WaitContext
from tests.support.channel_harness import Harness, tags
from tests.support.declaring import declare
from tests.support.scenario import Scenario
from tests.support.watching import Event, Seen, total

STEPS = (
    *("publish", "put", "grant 1", "grant 2", "stop 1", "settle", "settle all", "withhold", "confirm"),
    *("stall", "go", "block", "unblock", "look", "look whole", "detach 2", "probe"),
)


@dataclass
class Client:
    """What the client has sent, and which deliveries it has settled."""

    sent: int = 0
    taken: int = 0


class Session:
    """A scene that does steps."""

    def __init__(self) -> None:
        self.scene = Scenario("q")
        self.scene.sender("/queues/q")
        for handle in (1, 2):
            self.scene.receiver("/queues/q", handle)
        self.client = Client()
        self.world = self.scene.world.clients["C"]
        self.mine = self.world.mine[0]
        self.service = self.world.sessions[0].service
        self.queue = self.scene.world.queues["q"]
        self.seen = Seen()
        self.began_ns = self.seen.now_ns
        self.attached = {1, 2}
        self.probing = False
        self.observer = Observer(partial(session_samples, self.service), 1, 0, self.seen.add, self.seen.link)
        self.look(after_ns=0)

    def look(self, *, after_ns: int = 10, whole: bool = False) -> None:
        self.seen.now_ns += after_ns
        self.observer.observe(
            self.seen.now_ns, self.seen.now_ns, WaitContext(writer_blocked=self.world.blocked), whole=whole
        )

    def do(self, step: str) -> None:
        """Take one step; a step that is impossible now is left out."""
        word, _, argument = step.partition(" ")
        match word:
            case "publish":
                (publisher,) = self.service.publishers
                count = min(7, publisher.link.credit.link_credit)
                if count:
                    first = self.client.sent
                    self.scene.do(f"C> TRANSFER h=0 did={first}..{first + count - 1}")
                    self.client.sent += count
            case "put":
                self.scene.world.publish("q", 5)
            case "grant" if int(argument) in self.attached:
                count = self._consumer(int(argument)).link.credit.delivery_count
                self.scene.do(f"C> FLOW h={argument} dc={count} cr=9")
            case "stop" if int(argument) in self.attached:
                count = self._consumer(int(argument)).link.credit.delivery_count
                self.scene.do(f"C> FLOW h={argument} dc={count} cr=0")
            case "settle":
                unsettled = sorted(self.service.session.outbound.unsettled)
                for number in unsettled if argument else unsettled[:1]:
                    self.scene.do(f"C> DISPOSITION role=receiver first={number} settled=true state=accepted")
            case "withhold":
                self.queue.withholding = True
            case "confirm" if self.queue.held:
                self.scene.do("confirm q 1")
            case "stall" | "go" as command:
                self.scene.do(f"{command} q")
            case "block":
                self.world.blocked = True
            case "unblock":
                self.scene.world.unblock("C")
            case "detach" if int(argument) in self.attached and not self.world.blocked:
                self.attached.discard(int(argument))
                self.scene.do(f"C> DETACH h={argument} closed=true")
            case "look":
                self.look(whole=bool(argument))
            case "probe":
                self.observer.begin_probe()
                self.probing = True
        if self.probing:
            self.observer.probe(self.seen.now_ns, self.seen.now_ns)

    def _consumer(self, handle: int):  # type: ignore[no-untyped-def]
        return next(each for each in self.service.consumers if each.link.remote_handle == handle)


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_a_session_is_told_whole(steps: list[str]) -> None:
    """Sums of deliveries are those of the client; each link's elapsed times have no gap and no overlap."""
    session = Session()
    for step in steps:
        session.do(step)
    session.look(whole=True)
    session.observer.finish(session.seen.now_ns, session.seen.now_ns)
    events = session.seen.events
    assert total(events, EventKind.LINK_IN) == session.client.sent
    assert total(events, EventKind.LINK_OUT) == len(session.mine.received)
    check_times(events, session.began_ns, session.seen.now_ns, gone={2} - session.attached)
    assert total(events, EventKind.CONFIRM) <= session.client.sent
    assert all(0 <= event.value_ns <= session.seen.now_ns - session.began_ns for event in events)


def check_times(events: list[Event], began_ns: int, ended_ns: int, gone: set[int]) -> None:
    """Each link's times run from the beginning to the end, or to the link's own end."""
    for kind, handle in ((EventKind.LINK_IN, 0), (EventKind.LINK_OUT, 1), (EventKind.LINK_OUT, 2)):
        its = [event for event in events if event.kind == kind and event.handle == handle]
        at_ns = began_ns
        for event in its:
            assert event.ts_ns - event.value_ns == at_ns
            at_ns = event.ts_ns
        assert at_ns == ended_ns or handle in gone


CHANNEL_STEPS = (
    *(
        "publish",
        "confirms",
        "stall",
        "go",
        "prefetch",
        "consume",
        "cancel",
        "ack",
        "ack all",
        "look",
        "probe",
    ),
)


@given(st.lists(st.sampled_from(CHANNEL_STEPS), max_size=40))
def test_a_channel_is_told_whole(steps: list[str]) -> None:
    """Sums of messages, deliveries, confirms and acknowledgements are those of the client."""
    world = Harness()
    declare(world.catalog, world.vhost, "q")
    channel = world.channel()
    seen = Seen()
    observer = Observer(partial(channel_samples, channel.service), 1, 1, seen.add, seen.link)
    published = delivered = acked = confirmable = 0
    outstanding: list[int] = []

    def look(*, whole: bool = False) -> None:
        seen.now_ns += 10
        observer.observe(
            seen.now_ns, seen.now_ns, WaitContext(reader_credit=channel.credit.credit), whole=whole
        )

    for step in steps:
        consumers = channel.service.consuming.consumers
        confirming = channel.service.publishing.confirming
        match step:
            case "publish":
                channel.send(*[channel.content("q", b"x")] * 6)
                published += 6
                confirmable += 6 if confirming else 0
            case "confirms" if not confirming:
                channel.send(ConfirmSelect(no_wait=True))
            case "stall" | "go":
                world.box("q").stalled = step == "stall"
            case "prefetch":
                channel.send(BasicQos(0, 4, False))
            case "consume" if not consumers and not world.box("q").stalled:
                delivered += len(tags(new := channel.consume("q", "c")))
                outstanding += tags(new)
                look()  # who comes and goes between two looks is not seen
            case "cancel" if consumers:
                channel.send(BasicCancel("c", True))
            case "ack" | "ack all" if outstanding:
                count = len(outstanding) if step == "ack all" else 1
                channel.send(BasicAck(outstanding[count - 1], True))
                acked += count
                del outstanding[:count]
            case "look":
                look()
            case "probe":
                observer.begin_probe()
        world.rest()
        came = tags(channel.take())
        delivered += len(came)
        outstanding += came
        observer.probe(seen.now_ns, seen.now_ns)
    look(whole=True)
    observer.finish(seen.now_ns, seen.now_ns)
    assert total(seen.events, EventKind.LINK_IN) == published
    assert total(seen.events, EventKind.LINK_OUT) == delivered
    assert total(seen.events, EventKind.CONFIRM) <= confirmable
    assert total(seen.events, EventKind.SETTLE) <= acked
