"""Links to a real quorum queue: what its clients see of activity, time-outs, attempts and decisions."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.metadata.queue import DeclaredQueue, QueueCommand, QueueSpec
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import Command, Credit, CreditReply, Deliver, Publish, Subscribe
from amqp10broker.queues.queue_status import QueueCounters, QueueStats
from amqp10broker.sessions.amqp091.consuming import ChannelConsumer, ConsumerTerms
from amqp10broker.sessions.counters import Moment
from amqp10broker.sessions.credit import QueueCredit
from tests.support.clocked_queue import ClockedQueue
from tests.support.declaring import declare
from tests.support.reply_addresses import new_reply_to
from tests.support.scenario import Scenario
from tests.support.session_harness import FakeQueueTask


class QuorumScene(Scenario):
    """A scene whose queue `q` is a quorum queue."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.clocked: ClockedQueue | None = None
        self.world.start_queue = self._start_queue  # type: ignore[method-assign]
        given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        declare(self.world.catalog, self.world.vhost, "q", arguments={"x-queue-type": "quorum", **given})

    def _start_queue(self, spec: QueueSpec) -> FakeQueueTask:
        self.clocked = ClockedQueue(spec)
        running = self.world.queues[spec.name] = FakeQueueTask(self.world, self.clocked)  # type: ignore[arg-type]
        return running

    def wait(self, ms: int) -> list[str]:
        self.clocked.wait(ms)
        self.world.queues["q"]._take_effects()
        self.world.settle()
        return self.world.take_trace()

    def put(self, count: int) -> list[str]:
        self.world.publish("q", count)
        return self.world.take_trace()


def words(lines: list[str]) -> list[str]:
    return [
        " ".join(word for word in line.split() if word[:3] not in ("nii", "noi", "iw=")) for line in lines
    ]


@pytest.mark.rabbitmq("amqp_client_SUITE", "single_active_consumer_priority_quorum_queue")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "single_active_consumer_priority_take_over")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "link_state_properties_priority_replacement_test")
def test_a_higher_priority_takes_over_when_the_active_one_is_done() -> None:
    """The active one gets no more at once; the other becomes active when the held deliveries are settled."""
    scene = QuorumScene(single_active_consumer=True)
    scene.receiver("/queues/q", 1)
    scene.do("C> FLOW h=1 dc=0 cr=10")
    scene.put(1)
    came = words(scene.receiver("/queues/q", 2, properties="{rabbitmq:priority:1}"))
    assert came[0] == "B> FLOW h=1 dc=1 cr=9 available=0 properties={rabbitmq:active:false}"
    assert came[1].startswith("B> ATTACH name=link-2 h=2")
    assert came[2:] == ["B> FLOW h=2 dc=0 cr=0 available=0 properties={rabbitmq:active:false}"]
    scene.do("C> FLOW h=2 dc=0 cr=10")
    assert scene.put(1) == []
    came = words(scene.do("C> DISPOSITION role=receiver first=0 settled=true state=accepted"))
    assert came == [
        "B> FLOW h=2 dc=0 cr=10 available=0 properties={rabbitmq:active:true}",
        "B> TRANSFER h=2 did=1 tag=1 body=m1",
    ]


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("window", [1, 2])
def test_settling_what_timed_out_is_being_heard_of(settled: bool, window: int) -> None:
    """A link with credit left gets the message again without a new flow, as RabbitMQ's client for Java
    expects it (timedOutMessageMessageShouldBeRedeliveredOnceAccepted...).
    """
    scene = QuorumScene(consumer_timeout=500)
    scene.receiver("/queues/q", 1)
    scene.do("C> FLOW h=1 dc=0 cr=10")
    scene.put(window)
    assert scene.wait(600) == [
        f"B> DISPOSITION role=sender first=0{' last=1' if window > 1 else ''} state=released"
    ]
    came = scene.do(f"C> DISPOSITION role=receiver first=0 settled={str(settled).lower()} state=accepted")
    again = [line for line in came if "TRANSFER" in line]
    assert len(again) == 1
    assert f"did={window}" in again[0] or f"did={window}.." in again[0]
    assert "first-acquirer=false" in again[0]
    assert scene.world.queues["q"].queue.unsettled == window
    assert any("DISPOSITION role=sender first=0 settled=true" in line for line in came) is not settled


@pytest.mark.rabbitmq("amqp_client_SUITE", "available_messages_quorum_queue")
def test_available_says_what_is_left() -> None:
    scene = QuorumScene()
    scene.put(10)
    scene.receiver("/queues/q", 1)
    (line,) = [each for each in scene.do("C> FLOW h=1 dc=0 cr=4 drain=true") if "FLOW" in each]
    assert "dc=4 cr=0 available=6" in line


@pytest.mark.rabbitmq("amqp_client_SUITE", "incoming_window_closed_rabbitmq_internal_flow_quorum_queue")
def test_a_closed_window_leaves_messages_in_the_queue() -> None:
    """One batch waits in the session, the rest in the queue; when the window opens, all come in order."""
    scene = QuorumScene()
    scene.put(1000)
    scene.receiver("/queues/q", 1)
    assert [each for each in scene.do("C> FLOW iw=0 h=1 dc=0 cr=1000") if "TRANSFER" in each] == []
    assert scene.counts("q") == [744]
    scene.do("C> FLOW iw=2000")
    client = scene.world.clients["C"]
    assert client.mine[0].received == [f"m{number}" for number in range(1000)]
    assert scene.counts("q") == [0]


def asked_of(scene: QuorumScene) -> list[int]:
    """Return a list that gets the credit of each later request to the queue."""
    asked: list[int] = []
    queue, apply = scene.clocked, scene.clocked.apply

    def note(command: Command, now_ms: int) -> None:
        if isinstance(command, Credit):
            asked.append(command.credit)
        apply(command, now_ms)

    queue.apply = note  # type: ignore[method-assign]
    return asked


def test_a_client_that_reads_is_given_twice_as_much_by_each_request() -> None:
    """Each request is a log entry and waits for a sync: one has up to 8 x max_queue_credit."""
    scene = QuorumScene()
    scene.put(10_000)
    asked = asked_of(scene)
    scene.receiver("/queues/q", 1)
    scene.do("C> FLOW iw=100000 h=1 dc=0 cr=10000")
    assert scene.world.clients["C"].mine[0].received == [f"m{number}" for number in range(10_000)]
    assert asked == [256, 512, 1024, 2048, 2048, 2048, 2048, 10_000 - 9984]


def test_the_next_request_comes_when_half_of_the_last_one_is_used() -> None:
    """So single messages never find the queue without credit, as they would if it came at 0."""
    scene = QuorumScene()
    scene.put(0)
    asked = asked_of(scene)
    scene.receiver("/queues/q", 1)
    scene.do("C> FLOW iw=100000 h=1 dc=0 cr=10000")
    assert asked == [256]
    renewed: list[tuple[int, int]] = []
    for number in range(1, 1000):
        scene.put(1)
        if len(asked) > 1 + len(renewed):
            renewed.append((number, asked[-1]))
    assert renewed == [(128, 512), (384, 1024), (896, 2048)]


def test_a_client_is_never_given_more_than_its_credit() -> None:
    """This holds for any earlier request: the link requests only the credit left by the client's flows."""
    scene = QuorumScene()
    scene.put(10_000)
    asked = asked_of(scene)
    scene.receiver("/queues/q", 1)
    received = scene.world.clients["C"].mine[0].received
    for given in (1_500, 1_600, 5_000, 5_010):
        scene.do(f"C> FLOW iw=100000 h=1 dc={len(received)} cr={given - len(received)}")
        assert len(received) == given
    assert asked == [256, 512, 732, 100, 256, 512, 1024, 1608, 10]


# --- links that are kept --------------------------------------------------------------------------

KEPT = "name=mine source=/queues/q timeout=60 rcv-settle-mode=second"


def kept_scene(messages: int, **arguments: Any) -> QuorumScene:
    scene = QuorumScene(**arguments)
    scene.put(messages)
    scene.do(f"C> ATTACH h=1 {KEPT}", f"C> FLOW h=1 dc=0 cr={messages}")
    scene.world.lose("C")
    return scene


def come_back(scene: QuorumScene, unsettled: str) -> list[str]:
    return scene.do("connect C", "C> BEGIN", f"C> ATTACH h=1 {KEPT} unsettled={{{unsettled}}}")


def test_what_was_decided_before_is_told_once_it_is_durable() -> None:
    scene = kept_scene(3)
    scene.put(1)
    scene.do("mute q")
    assert "unsettled={#0:null,#1:null,#2:null}" in come_back(scene, "#0:accepted,#1:null,#2:accepted")[-1]
    assert scene.do("C> FLOW h=1 dc=0 cr=10") == ["B> TRANSFER h=1 did=0 tag=1 resume=true body=m1"]
    assert scene.do("speak q") == [
        "B> TRANSFER h=1 did=1 tag=0 settled=true state=accepted resume=true body=",
        "B> TRANSFER h=1 did=2 tag=2 settled=true state=accepted resume=true body=",
        "B> TRANSFER h=1 did=3 tag=3 body=m3",
    ]
    assert scene.world.queues["q"].queue.unsettled == 2


def test_a_suspended_link_has_failed_when_its_time_is_over() -> None:
    scene = kept_scene(2)
    come_back(scene, "#0:null,#1:null")
    assert scene.do("C> FLOW h=1 dc=0 cr=1") == ["B> TRANSFER h=1 did=0 tag=0 resume=true body=m0"]
    scene.do("lose C", "pass 60")
    assert "unsettled={} " in come_back(scene, "#0:null,#1:null")[-1]
    lines = scene.script.do_plainly("C> FLOW h=1 dc=0 cr=2")
    assert [line.partition(" body=")[2] for line in lines] == [
        "m0 first-acquirer=false delivery-count=1",
        "m1 first-acquirer=false delivery-count=1",
    ]


def test_what_a_suspended_link_holds_too_long_is_not_its_own_any_more() -> None:
    """The queue's consumer time-out applies to it as to any link."""
    scene = kept_scene(2, consumer_timeout=60_000)
    assert scene.counts("q") == [0]
    scene.wait(61_000)
    assert scene.counts("q") == [2]
    assert "unsettled={} " in come_back(scene, "#0:accepted,#1:null")[-1]
    assert scene.counts("q") == [2]


def test_a_suspended_link_stays_the_active_consumer_and_hears_so_when_it_is_back() -> None:
    """With a single active consumer the next one waits for it."""
    scene = kept_scene(1, single_active_consumer=True)
    scene.do("D> BEGIN", "D> ATTACH h=1 source=/queues/q", "D> FLOW h=1 dc=0 cr=10")
    assert scene.put(1) == []
    (_, _, flow) = words(come_back(scene, "#0:null"))
    assert flow == "B> FLOW h=1 dc=0 cr=0 available=0 properties={rabbitmq:active:true}"
    scene.do("C> FLOW h=1 dc=0 cr=10")
    (transfer,) = [line for line in scene.do("C> DETACH h=1 closed=true") if "TRANSFER" in line]
    assert transfer.startswith("B>D TRANSFER h=1 did=0..1 ")


REPLY_TO = new_reply_to("1.1")


class Wire:
    """A consumer, a classic queue, and the letters between them, which move when the test says so."""

    def __init__(self, *, prefetch: int, messages: int) -> None:
        self.queue = ClassicQueue("q", durable=True)
        self.letters: list[Command] = []
        ref = REPLY_TO.consumer()
        declared = DeclaredQueue("q", "/", "classic", True, None, False, {}, self)
        terms = ConsumerTerms(no_ack=False, tag="c", prefetch=prefetch)
        self.consumer = ChannelConsumer(terms, QueueCredit(declared, ref, self._put), Moment())
        self.queue.apply(Subscribe(ref, False), 0)
        numbers = range(messages)
        contents = [(b"\x91" + bytes(9), b"%d" % number) for number in numbers]
        self.queue.apply(Publish(new_reply_to("2.1").publisher(), numbers, contents, True), 0)
        self.queue.take_effects()

    def _put(self, command: QueueCommand) -> None:
        command[0].post(command[1])

    def post(self, command: Command) -> None:
        self.letters.append(command)

    @property
    def counters(self) -> QueueCounters:
        return QueueCounters()

    def figures(self) -> QueueStats:
        return QueueStats()

    def exchange(self) -> None:
        letters, self.letters = self.letters, []
        for letter in letters:
            self.queue.apply(letter, 0)
        for effect in self.queue.take_effects().get(REPLY_TO.id, []):
            if isinstance(effect, Deliver):
                self.consumer.on_deliver(effect)
            elif isinstance(effect, CreditReply):
                self.consumer.on_reply(effect)


def test_a_request_that_crossed_a_give_back_does_not_raise_the_next() -> None:
    """The late answer has an older count: taken for a drain's, it would be requested again."""
    wire = Wire(prefetch=2, messages=10)
    wire.consumer.request()
    wire.consumer.give_back()
    wire.exchange()
    assert (wire.consumer.unsent, wire.queue.ready) == (0, 10)
    wire.consumer.request()
    wire.exchange()
    assert [body for _, body in wire.consumer.messages] == [b"0", b"1"]
    assert wire.queue.ready == 8
