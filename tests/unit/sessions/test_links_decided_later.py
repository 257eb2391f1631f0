"""Links, channels and requests that wait for what is decided elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import Unavailable
from amqp10broker.metadata.plan import VhostLimits
from amqp10broker.protocols.amqp091.errors import AmqpHardError
from amqp10broker.protocols.amqp091.methods import (
    ChannelClose,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from amqp10broker.protocols.amqp10.errors import Condition
from amqp10broker.protocols.amqp10.performatives import Attach, Detach, Source, Target
from amqp10broker.protocols.amqp10.session import HeldFrames
from amqp10broker.queues.commands import DELETE
from tests.support.channel_harness import ChannelEnds, Harness
from tests.support.declaring import change_vhost, declare
from tests.support.deferred_decisions import DeferredDecisions
from tests.support.scenario import ACCEPTED, Scenario, content, detached, disposition, ended
from tests.unit.sessions.test_management import RESPONSES, Peer, attach

TEMPORARY = "source=dynamic capabilities=temporary-queue"
REPLIES = "target=dynamic capabilities=temporary-queue"
TOPIC = "target=dynamic capabilities=temporary-topic"
SUBSCRIPTION = "name=sub capabilities=topic durable=2 expiry-policy=never"


class SlowScene(Scenario):
    """A scene whose client waits for each change of the catalog until `decide`.

    Attributes:
        slow: what waits.
    """

    def __init__(self, *queues: str) -> None:
        super().__init__(*queues)
        self.slow = DeferredDecisions(self.world.catalog)
        self.service.context.propose = self.slow

    @property
    def service(self) -> Any:
        return self.world.clients["C"].all_sessions[0].service

    @property
    def held(self) -> HeldFrames:
        return self.service.session.held

    def decide(self) -> list[str]:
        letter = self.slow.decide()
        self.world.clients["C"].all_sessions[0].letters.append(letter)
        self.world.settle()
        return self.world.take_trace()

    def decide_all(self) -> list[str]:
        came: list[str] = []
        while self.slow.proposed:
            came += self.decide()
        return came


def to(queue: str, body: str) -> str:
    return f"TRANSFER h=0 payload={content(body, to=queue).hex()}"


FRAMES = {
    "a queue to publish to": ("ATTACH h=0 target=new",),
    "a queue to consume from": ("ATTACH h=0 source=new",),
    "a temporary queue for replies": (f"ATTACH h=0 {TEMPORARY}",),
    "a temporary queue to publish to": (f"ATTACH h=0 {REPLIES}",),
    "a flow behind": ("ATTACH h=0 source=new", "FLOW h=0 dc=0 cr=5 echo=true"),
    "a drain behind": ("ATTACH h=0 source=new", "FLOW h=0 dc=0 cr=5 drain=true"),
    "transfers behind": ("ATTACH h=0 target=new", "TRANSFER h=0 did=0..4", "TRANSFER h=0 settled=true"),
    "a delivery in parts behind": (
        "ATTACH h=0 target=new",
        "TRANSFER h=0 part=1/2 body=big size=900",
        "TRANSFER h=0 part=2/2 body=big size=900",
    ),
    "transfers over the credit behind": ("ATTACH h=0 target=new", "TRANSFER h=0 did=0..200"),
    "a detach behind": ("ATTACH h=0 source=new", "DETACH h=0 closed=true"),
    "a detach of a temporary queue behind": (f"ATTACH h=0 {TEMPORARY}", "DETACH h=0 closed=true"),
    "the handle again": (
        "ATTACH h=0 name=a source=new",
        "DETACH h=0 closed=true",
        "ATTACH h=0 name=b target=newer",
        "TRANSFER h=0",
    ),
    "the handle again, without a detach": ("ATTACH h=0 name=a source=new", "ATTACH h=0 name=b source=old"),
    "the name again": (
        "ATTACH h=0 name=a source=new",
        "ATTACH h=1 name=a source=old",
        "FLOW h=1 dc=0 cr=5 echo=true",
    ),
    "a link to what another declares": (
        "ATTACH h=0 target=new",
        "ATTACH h=1 source=/queues/new",
        "FLOW h=1 dc=0 cr=5",
        "TRANSFER h=0",
    ),
    "a link to what is not there": (
        "ATTACH h=0 target=new",
        "ATTACH h=1 source=/queues/none",
        "FLOW h=1 dc=0 cr=5",
    ),
    "a topic to consume from": ("ATTACH h=0 source=/topics/t", "FLOW h=0 dc=0 cr=5 echo=true"),
    "a temporary topic": (f"ATTACH h=0 {TOPIC}", "TRANSFER h=0", "DETACH h=0 closed=true"),
    "a durable subscription": (
        f"ATTACH h=0 {SUBSCRIPTION} source=/topics/t",
        "FLOW h=0 dc=0 cr=5 echo=true",
        "ATTACH h=1 target=/topics/t",
    ),
    "a durable subscription for another topic": (
        f"ATTACH h=0 {SUBSCRIPTION} source=/topics/t",
        "DETACH h=0 closed=false",
        f"ATTACH h=0 {SUBSCRIPTION} source=/topics/u",
        "DETACH h=0 closed=true",
    ),
    "an anonymous terminus": ("ATTACH h=0 target=anonymous", to("new", "m0")),
    "and neighbours": (
        "ATTACH h=0 target=anonymous",
        to("old", "m0") + " ; " + to("new", "m1") + " ; " + to("old", "m2") + " ; " + to("new", "m3"),
        to("newer", "m4"),
        to("old", "m5"),
    ),
    "a detach behind what waits": ("ATTACH h=0 target=anonymous", to("new", "m0"), "DETACH h=0 closed=true"),
    "a malformed message behind what waits": (
        "ATTACH h=0 target=anonymous",
        to("new", "m0"),
        "TRANSFER h=0 payload=ff",
    ),
}


def said(lines: list[str]) -> list[str]:
    """Return the output that does not depend on the wake's size: no windows and grants, and outcomes by
    delivery, at the end.
    """
    others: list[str] = []
    dispositions: list[str] = []
    for line in lines:
        words = [word for word in line.split(" ") if word.partition("=")[0] not in ("nii", "noi", "iw")]
        if words[1] == "DISPOSITION":
            given = dict(word.split("=", 1) for word in words[2:])
            first = int(given["first"])
            last = int(given.get("last", first))
            dispositions += [f"{number} {given['state']}" for number in range(first, last + 1)]
        elif words[1] != "FLOW" or "available=" in line:
            others.append(" ".join(words))
    return others + sorted(dispositions)


@pytest.mark.parametrize("pieces", ["frame by frame", "in one write"])
@pytest.mark.parametrize("frames", FRAMES.values(), ids=FRAMES.keys())
def test_what_is_decided_later_comes_to_the_same(frames: tuple[str, ...], pieces: str) -> None:
    """The client sends frames without waiting; each is handled behind those it depends on, and the client
    gets in the end the same frames as with immediate decisions.
    """
    at_once, later = Scenario("old"), SlowScene("old")
    in_one_write = "C> " + " ; ".join(frames)
    heard = at_once.do(in_one_write)
    waited = later.do(*[f"C> {frame}" for frame in frames] if pieces == "frame by frame" else [in_one_write])
    assert later.slow.proposed
    waited += later.decide_all()
    assert said(waited) == said(heard)
    assert not later.held.by_remote
    assert later.service._unfinished.held_bytes == 0
    for name, queue in at_once.world.queues.items():
        assert later.world.queues[name].queue.ready == queue.queue.ready, name
    assert set(later.world.vhost.queues) == set(at_once.world.vhost.queues)


# --- what goes on meanwhile -----------------------------------------------------------------------


def test_other_links_go_on_meanwhile() -> None:
    scene = SlowScene("old")
    assert scene.do("C> ATTACH h=0 source=new ; FLOW h=0 dc=0 cr=5") == []
    assert scene.receiver("/queues/old", 2)[0].startswith("B> ATTACH name=link-2 h=2")
    scene.do("C> FLOW h=2 dc=0 cr=5")
    assert scene.sender("/queues/old", 1)[0].startswith("B> ATTACH name=link-1 h=1")
    assert sorted(scene.do("C> TRANSFER h=1")) == [
        disposition(0, ACCEPTED),
        "B> TRANSFER h=2 did=0 tag=0 body=m0",
    ]
    (attach,) = scene.decide()
    assert attach == "B> ATTACH name=link-0 h=0 role=sender source=new idc=0"
    scene.sender("/queues/new", 3)
    came = scene.do("C> TRANSFER h=3")
    assert "B> TRANSFER h=0 did=1 tag=0 body=m1" in came, "the flow behind was lost"


def test_a_delivery_that_waits_for_its_queue_is_settled_when_it_is_there() -> None:
    """So are those behind it, in order, although they go to queues that exist."""
    scene = SlowScene("old")
    scene.sender(None)
    scene.sender("/queues/old", 1)
    assert scene.do("C> " + to("new", "m0"), "C> " + to("old", "m1"), "C> " + to("new", "m2")) == []
    assert scene.do("C> TRANSFER h=1") == [disposition(3, ACCEPTED)], "another link of the session waits, too"
    assert scene.decide() == ["B> DISPOSITION role=receiver first=0 last=2 settled=true state=accepted"]
    assert (scene.bodies("new"), scene.bodies("old")) == (["m0", "m2"], ["m3", "m1"])


@pytest.fixture
def scene() -> SlowScene:
    return SlowScene()


def test_what_waits_for_its_queue_has_the_clients_credit(scene: SlowScene) -> None:
    """A client that continues to publish soon has none left, and then violates the protocol."""
    scene.sender(None)
    twice = 2 * scene.service.session.links.by_remote[0].credit.limit
    came = scene.do(*["C> " + to("new", "m")] * twice)
    assert [line.split(" ")[1] for line in came if " h=0 " in line] == ["FLOW", "DETACH"]
    assert "amqp:link:transfer-limit-exceeded" in came[-1]
    assert scene.decide() == []
    assert scene.counts("new") == [0], "it was held by a link that is no more"


# --- what ends it otherwise -----------------------------------------------------------------------


def no_more_queues(scene: Scenario) -> str:
    change_vhost(scene.world.catalog, scene.world.vhost, limits=VhostLimits(max_queues=0))
    return "cannot declare queue 'new': queue limit in vhost '/' (0) is reached"


@pytest.mark.parametrize("terminus", ["source", "target"])
def test_an_attach_is_refused_with_what_is_decided(terminus: str, scene: SlowScene) -> None:
    text = no_more_queues(scene)
    assert scene.do(f"C> ATTACH h=0 {terminus}=new") == []
    attach, detach = scene.decide()
    assert attach.startswith("B> ATTACH name=link-0 h=0")
    assert f"{terminus}=null" in attach
    assert detach == detached(0, Condition.RESOURCE_LIMIT_EXCEEDED, text)
    assert scene.do("C> DETACH h=0 closed=true") == []
    assert scene.receiver("/queues/gone", 0)[0].startswith("B> ATTACH name=link-0 h=0"), "the handle is free"


@pytest.mark.parametrize("terminus", ["source", "target"])
def test_a_queue_that_another_has_made_meanwhile_is_taken_as_it_is(terminus: str, scene: SlowScene) -> None:
    """The request is refused, because its arguments differ; an attach does not compare them."""
    scene.do(f"C> ATTACH h=0 {terminus}=new")
    declare(scene.world.catalog, scene.world.vhost, "new", durable=False)
    assert f"{terminus}=new" in scene.decide()[0]


@pytest.mark.parametrize(
    ("frame", "right"),
    [("ATTACH h=0 source=new", "read"), ("ATTACH h=0 target=new", "write"), (to("new", "m"), "write")],
    ids=["source", "target", "anonymous"],
)
def test_a_right_that_is_taken_away_meanwhile_is_missing(frame: str, right: str, scene: SlowScene) -> None:
    if "payload" in frame:
        scene.sender(None)
    scene.do(f"C> {frame}")
    rights = {"configure": ".*", "read": ".*", "write": ".*"} | {right: ""}
    scene.allow(**rights)
    what = "read access to queue 'new'" if right == "read" else "write access to exchange 'amq.default'"
    assert scene.decide() == [
        ended("amqp:unauthorized-access", f"{what} in vhost '/' refused for user 'guest'")
    ]


@pytest.mark.parametrize("way", ["end", "lost"])
def test_nothing_is_left_of_what_waits_when_its_session_ends(way: str, scene: SlowScene) -> None:
    """The client gets its end at once. An exclusive queue is made and deleted again; a queue that it named
    stays, as after any other declaration; no other frame is sent.
    """
    scene.do(
        "C> ATTACH h=0 target=new ; TRANSFER h=0",
        f"C> ATTACH h=1 {TEMPORARY} ; FLOW h=1 dc=0 cr=5",
        "C> ATTACH h=2 target=anonymous",
        "C> " + to("newer", "m").replace("h=0", "h=2"),
    )
    service = scene.service
    assert service._unfinished.held_bytes > 0
    if way == "end":
        assert scene.do("C> END") == ["B> END"]
        assert service._unfinished.held_bytes == 0
    else:
        scene.world.lose("C")
    assert len(scene.slow.proposed) == 4
    while scene.slow.proposed:
        service.on_decided(scene.slow.decide())
    scene.world.settle()
    assert scene.world.take_trace() == []
    assert service.take_commands() == []
    assert set(scene.world.vhost.queues) == {"new", "newer"}
    assert scene.counts("new", "newer") == [0, 0]


def test_what_is_held_is_bounded(scene: SlowScene) -> None:
    """The bound includes the connection's partial deliveries. A client need not send before its attach is
    answered; it has no credit.
    """
    scene.service._unfinished.bytes_max = 200_000
    scene.do("C> ATTACH h=0 source=new", "C> ATTACH h=0 source=new", "C> FLOW h=0 dc=0 cr=2 properties={a:1}")
    scene.do("C> ATTACH h=1 target=newer", "C> TRANSFER h=1 size=60000")
    (line,) = scene.do("C> TRANSFER h=1 size=60000")
    assert line.startswith("B> END error=amqp:resource-limit-exceeded")
    assert scene.service._unfinished.held_bytes == 0


def test_a_connection_that_attaches_thousands_together_is_served(scene: SlowScene) -> None:
    """A flow follows each attach: little of them is held, and the bound is far."""
    links = range(200)
    scene.do(*[f"C> ATTACH h={each} source=q{each} ; FLOW h={each} dc=0 cr=1" for each in links])
    of_all = scene.service._unfinished.held_bytes / len(links) * 64 * 256
    assert of_all < scene.world.config.unfinished_bytes_max
    assert len(scene.decide_all()) == len(links)


def test_a_link_that_is_ended_while_it_waits_answers_its_clients_detach() -> None:
    """Another session takes its name; its held frames are dropped, and its handle is free in the end."""
    scene = SlowScene("old")
    scene.do("C> ATTACH h=0 name=a target=anonymous", "C> " + to("new", "m0"), "C> BEGIN ch=1")
    came = scene.do("C> ATTACH ch=1 h=0 name=a target=/queues/old")
    assert came[-1].startswith("B> DETACH h=0 closed=true error=amqp:link:stolen")
    scene.do("C> DETACH h=0 closed=true")
    assert scene.decide() == []
    assert not scene.held.by_remote
    assert scene.counts("new") == [0]
    assert scene.receiver("/queues/old", 0)[0].startswith("B> ATTACH name=link-0 h=0")


def test_a_subscription_that_is_made_again_before_its_end_is_decided(scene: SlowScene) -> None:
    """The old one is deleted first: the new subscriber is not detached when that is decided."""
    scene.do(f"C> ATTACH h=0 {SUBSCRIPTION} source=/topics/t")
    scene.decide_all()
    catalog = scene.world.catalog
    ref = scene.service.context.reply_to.request()
    catalog.decide = lambda request: scene.slow.proposed.append((request, ref))
    assert scene.do("C> DETACH h=0 closed=true") == ["B> DETACH h=0 closed=true"]
    (old,) = catalog
    assert scene.do(f"C> ATTACH h=1 {SUBSCRIPTION} source=/topics/t") == []
    catalog.decide = None
    came = scene.decide_all()
    assert came == ["B> ATTACH name=sub h=1 role=sender source=/topics/t idc=0"]
    (new,) = catalog
    assert new is not old
    scene.do("C> ATTACH h=2 target=/topics/t")
    scene.do("C> FLOW h=1 dc=0 cr=1")
    assert "B> TRANSFER h=1 did=0 tag=0 body=m0" in scene.publish(handle=2)


TIMEOUT = Unavailable("binding", "Could not add binding due to timeout")


@pytest.fixture
def channel() -> ChannelEnds:
    return Harness().channel()


def slow_channel(channel: ChannelEnds) -> DeferredDecisions:
    slow = DeferredDecisions(channel.world.catalog)
    channel.service.context.propose = slow
    return slow


def decide(channel: ChannelEnds, slow: DeferredDecisions) -> list[object]:
    channel.service.on_decided(slow.decide())
    channel.wake()
    channel.world.rest()
    return list(channel.take())


def test_a_channel_waits_for_each_change_in_turn(channel: ChannelEnds) -> None:
    """A bind behind a declare finds the queue, also when both came in one write."""
    slow = slow_channel(channel)
    methods = (
        ExchangeDeclare("x", "fanout"),
        QueueDeclare("q", durable=True),
        QueueBind("q", "x", ""),
        channel.content("q", b"behind"),
    )
    assert channel.say(*methods) == []
    assert len(slow.proposed) == 1
    assert decide(channel, slow) == [ExchangeDeclareOk()]
    assert decide(channel, slow) == [QueueDeclareOk("q", 0, 0)]
    assert channel.world.vhost.lookup("q").handle.ready == 0
    assert decide(channel, slow) == [QueueBindOk()]
    assert channel.world.vhost.lookup("q").handle.ready == 1
    assert not slow.proposed


def test_a_refusal_that_comes_later_closes_the_channel(channel: ChannelEnds) -> None:
    slow = slow_channel(channel)
    assert channel.say(QueueBind("nothing", "amq.fanout", "")) == []
    [closed] = decide(channel, slow)
    assert isinstance(closed, ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (404, 50, 20)
    assert "no queue 'nothing' in vhost '/'" in closed.reply_text


@pytest.mark.parametrize(
    "method",
    [QueueDeclare("q", durable=True), ExchangeDeclare("x", "fanout"), QueueBind("old", "amq.fanout", "")],
)
def test_without_a_majority_the_connection_is_closed_with_541(channel: ChannelEnds, method: Any) -> None:
    declare(channel.world.catalog, channel.world.vhost, "old")
    slow = slow_channel(channel)
    assert channel.say(method) == []
    with pytest.raises(AmqpHardError, match="due to timeout") as raised:
        channel.service.on_decided(slow.refuse(TIMEOUT))
    assert raised.value.code == 541


def test_without_a_majority_management_answers_500_and_a_link_is_refused() -> None:
    """M5: an attach that must declare its queue gets amqp:internal-error."""
    peer = Peer().attach_pair()
    slow = DeferredDecisions(peer.broker.catalog)
    peer.service.context.propose = slow
    peer.send(peer.request("PUT", "/queues/q", {}))
    peer.service.on_decided(slow.refuse(TIMEOUT))
    peer.settle()
    assert [status for status, _ in peer.responses] == ["500"]
    peer.send(Attach(name="dynamic", handle=5, role=True, source=Source(dynamic=True), target=Target()))
    peer.service.on_decided(slow.refuse(TIMEOUT))
    assert any("DETACH" in line and "amqp:internal-error" in line for line in peer.settle())


def test_what_is_decided_for_a_channel_that_was_closed_is_nobodys(channel: ChannelEnds) -> None:
    """It is applied all the same, unseen by the client."""
    slow = slow_channel(channel)
    channel.say(QueueDeclare("q", durable=True))
    late = slow.decide()
    channel.service.close()
    channel.service.on_decided(late)
    assert channel.world.vhost.find("q") is not None


def test_management_waits_for_each_change_in_turn() -> None:
    """Responses come in the order of requests; a refused one does not delay those behind it."""
    peer = Peer().attach_pair()
    slow = DeferredDecisions(peer.broker.catalog)
    peer.service.context.propose = slow
    binding = {"source": "amq.fanout", "destination_queue": "q", "binding_key": "", "arguments": {}}
    peer.send(
        peer.request("PUT", "/queues/q", {}),
        peer.request("PUT", "/queues/q", {"durable": False}),
        peer.request("POST", "/bindings", binding),
        peer.request("GET", "/queues/q"),
    )
    assert peer.responses == []
    seen = []
    while slow.proposed:
        assert len(slow.proposed) == 1
        peer.service.on_decided(slow.decide())
        peer.settle()
        seen.append([status for status, _ in peer.responses])
    assert seen == [["201"], ["201", "409"], ["201", "409", "204", "200"]]
    assert len(peer.broker.vhost.topology.bindings()) == 1


def test_an_attach_finds_what_a_request_before_it_declares() -> None:
    """It waits while that is undecided; an attach to an existing queue is answered at once."""
    peer = Peer().attach_pair()
    declare(peer.broker.catalog, peer.broker.vhost, "old")
    slow = DeferredDecisions(peer.broker.catalog)
    peer.service.context.propose = slow
    links = [
        Attach(name=name, handle=handle, role=True, source=Source(address=f"/queues/{name}"), target=Target())
        for handle, name in enumerate(("new", "none", "old"), 2)
    ]
    came = peer.send(peer.request("PUT", "/queues/new", {}), *links)
    assert [line.split()[1] for line in came if "ATTACH" in line] == ["name=old"]
    peer.service.on_decided(slow.decide())
    came = peer.settle()
    assert [line.split()[1] for line in came if "ATTACH" in line] == ["name=new", "name=none"]
    assert [line.split()[1] for line in came if "DETACH" in line] == ["h=3"]


def test_what_is_held_for_an_attach_goes_on_when_its_queue_ends_behind_a_response() -> None:
    """The attach waits for the answer of a deleted queue, and is refused behind the response to another
    request: the client attaches the name again, and sends nothing more.
    """
    peer = Peer().attach_pair()
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    queue, _ = declare(peer.broker.catalog, peer.broker.vhost, "q", arguments=arguments)
    queue.handle.post(DELETE)
    declare(peer.broker.catalog, peer.broker.vhost, "old")
    links = [
        Attach(name="a", handle=2, role=True, source=Source(address=f"/queues/{name}"), target=Target())
        for name in ("q", "old")
    ]
    came = peer.send(peer.request("GET", "/queues/old"), links[0], Detach(handle=2, closed=True), links[1])
    assert [line.split()[0] for line in came] == ["response", "ATTACH", "DETACH", "ATTACH"]
    assert "source=/queues/old" in came[-1]


def test_requests_are_not_held_for_responses_that_cannot_come() -> None:
    """Held requests are bounded by the client's credit for responses: a client that detaches and attaches
    that link begins anew, however long the first decision takes.
    """
    peer = Peer().attach_pair()
    slow = DeferredDecisions(peer.broker.catalog)
    peer.service.context.propose = slow
    for turn in range(20):
        names = [f"q{turn}-{number}" for number in range(3)]
        peer.send(*[peer.request("PUT", f"/queues/{name}", {}) for name in names])
        peer.send(Detach(handle=RESPONSES, closed=True), attach(RESPONSES), peer.flow(RESPONSES, 0, 100))
    peer.send(peer.request("GET", "/queues/q0-0"))
    assert len(peer.service._management._held) == 1
    peer.service.on_decided(slow.decide())
    peer.settle()
    assert [status for status, _ in peer.responses] == ["200"]
    assert list(peer.broker.vhost.queues) == ["q0-0"]
