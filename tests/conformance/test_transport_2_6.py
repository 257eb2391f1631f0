"""Part 2, section 2.6: links. States, attaching and refusing, credit, settlement, transfers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from amqp10broker.protocols.amqp10.connection import FrameReader
from amqp10broker.protocols.amqp10.credit import SenderCredit
from amqp10broker.protocols.amqp10.errors import AmqpLinkError
from amqp10broker.protocols.amqp10.link import (
    LINK_TRANSITIONS,
    DeliveriesReceived,
    DeliveriesSettled,
    DeliveriesUpdated,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    LinkInput,
    LinkState,
    ReceiverLink,
    SenderLink,
    SessionEvent,
)
from amqp10broker.protocols.amqp10.performatives import Accepted, Begin, End, Flow, Source, Target
from amqp10broker.protocols.amqp10.session import Session
from tests.support.engine import read_all
from tests.support.script import ScriptRunner

SELECTOR = "apache.org:selector-filter:string"
S = LinkState
Step = LinkInput
LAST = 4_294_967_295

LEGAL = {
    (S.DETACHED, Step.SEND_ATTACH),
    (S.DETACHED, Step.RECEIVE_ATTACH),
    (S.ATTACH_SENT, Step.RECEIVE_ATTACH),
    (S.ATTACH_SENT, Step.SEND_DETACH),
    (S.ATTACH_RECEIVED, Step.SEND_ATTACH),
    (S.ATTACHED, Step.SEND_DETACH),
    (S.ATTACHED, Step.RECEIVE_DETACH),
    (S.DETACH_SENT, Step.RECEIVE_DETACH),
    (S.DETACH_SENT, Step.RECEIVE_ATTACH),
    (S.DETACH_RECEIVED, Step.SEND_DETACH),
}


@pytest.mark.parametrize(("state", "step"), list(product(S, Step)), ids=lambda value: value.name)
def test_every_pair_of_state_and_input_is_a_transition_or_refused(state: S, step: Step) -> None:
    """2.6.3 to 2.6.6 have attach and detach both ways, and a pipelined detach."""
    assert ((state, step) in LINK_TRANSITIONS) == ((state, step) in LEGAL)
    link = SenderLink("name", 0)
    link.state = state
    if (state, step) in LEGAL:
        link.move(step)
        assert link.state is LINK_TRANSITIONS[state, step]
    else:
        with pytest.raises(KeyError):
            link.move(step)


# --- two session ends back to back ---------------------------------------------------------------


class Ends:
    """A client's and a server's session end, and what each reported."""

    def __init__(self, *, window: int = 100, frame_size_max: int = 512) -> None:
        options: dict[str, Any] = {
            "incoming_window": window,
            "handle_max": 7,
            "frame_size_max": frame_size_max,
        }
        self.client = Session(0, **options)
        self.server = Session(0, **options)
        self._to_client = FrameReader()
        self._to_server = FrameReader()
        self.client.begin()
        first = Begin(next_outgoing_id=0, incoming_window=window, outgoing_window=LAST, handle_max=7)
        self.client.take_output()
        self.server.receive_begin(0, first)
        self.server.begin()
        self.server.take_output()
        self.client.receive_begin(0, first)

    def step(self) -> tuple[list[SessionEvent], list[SessionEvent]]:
        for session in (self.client, self.server):
            session.pump(1 << 20)
        forth = b"".join(bytes(piece) for piece in self.client.take_output())
        back = b"".join(bytes(piece) for piece in self.server.take_output())
        return _read(self._to_client, self.client, back), _read(self._to_server, self.server, forth)

    def attach(self, *, sender: bool, **options: Any) -> tuple[Any, Any]:
        mine = self.client.links.attach(
            "link", not sender, source=Source(address="s"), target=Target(address="t"), **options
        )
        (attaching,) = self.step()[1]
        assert isinstance(attaching, LinkAttaching)
        attach = attaching.attach
        self.server.links.accept(
            attaching.link,
            source=attach.source,
            target=attach.target,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            credit_limit=10,
        )
        (attached,) = self.step()[0][:1]
        assert isinstance(attached, LinkAttached)
        return mine, attaching.link


def _read(reader: FrameReader, session: Session, data: bytes) -> list[SessionEvent]:
    events: list[SessionEvent] = []
    for _, items in reader.read(data):
        events += session.receive(items)
    return events


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_a_link_is_attached_when_both_attaches_were_exchanged(ends: Ends) -> None:
    """2.6.3: a link is established when both ends have sent attach."""
    mine, theirs = ends.attach(sender=True)
    assert (mine.state, theirs.state) == (S.ATTACHED, S.ATTACHED)
    assert isinstance(mine, SenderLink)
    assert isinstance(theirs, ReceiverLink)
    ends.step()
    assert mine.credit.link_credit == 10


def test_deliveries_go_both_ways_between_two_ends_of_the_engine() -> None:
    """The engine has no roles: the client's sender and the client's receiver work alike."""
    for sender in (True, False):
        ends = Ends()
        mine, theirs = ends.attach(sender=sender)
        source, target = (ends.client, ends.server) if sender else (ends.server, ends.client)
        out_link, in_link = (mine, theirs) if sender else (theirs, mine)
        if not sender:
            ends.client.grant(in_link, 5)
        ends.step()
        source.outbound.queue_deliveries(out_link, [7, 8], [(b"", b"one"), (b"", b"two" * 300)])
        events = [event for side in ends.step() for event in side]
        payloads = [
            bytes(payload)
            for event in events
            if isinstance(event, DeliveriesReceived)
            for payload in event.payloads
        ]
        assert payloads == [b"one", b"two" * 300]
        target.settling.settle_received([0, 1], Accepted())
        (update,) = [event for side in ends.step() for event in side if isinstance(event, DeliveriesUpdated)]
        assert (update.keys, update.settled, type(update.state)) == ([7, 8], True, Accepted)


def test_detach_is_answered_by_detach(ends: Ends) -> None:
    """2.6.4 and 2.6.6: the peer answers with a detach of its own."""
    mine, theirs = ends.attach(sender=True)
    ends.client.links.detach(mine)
    assert mine.state is S.DETACH_SENT
    (event,) = [event for event in ends.step()[1] if isinstance(event, LinkDetached)]
    assert event.closed
    ends.server.links.detach(theirs, closed=True)
    ends.step()
    assert (mine.state, theirs.state) == (S.DETACHED, S.DETACHED)


def test_detaches_that_cross_end_the_link(ends: Ends) -> None:
    mine, theirs = ends.attach(sender=True)
    ends.client.links.detach(mine)
    ends.server.links.detach(theirs)
    assert ends.step() == ([], [])
    assert (mine.state, theirs.state) == (S.DETACHED, S.DETACHED)


def test_a_refused_attach_of_the_client_end_is_reported(ends: Ends) -> None:
    """2.6.3: the refusal reaches the initiator as an attach with a null terminus and a detach."""
    ends.client.links.attach("link", False, source=Source(), target=Target(address="nowhere"))
    (attaching,) = ends.step()[1]
    assert isinstance(attaching, LinkAttaching)
    ends.server.links.refuse(attaching.link, AmqpLinkError("amqp:not-found", "no such thing"))
    events = ends.step()[0]
    detached = [event for event in events if isinstance(event, LinkDetached)]
    assert detached[0].error.condition == "amqp:not-found"


def test_a_handle_may_be_used_again_after_both_detaches() -> None:
    """2.6.2: a handle names a link from attach to detach, and is free behind it."""
    script = ScriptRunner()
    for command in ("queue q", "C> BEGIN"):
        script.do(command)
    for _ in range(3):
        assert script.do("C> ATTACH h=3 target=/queues/q")[0].startswith("B> ATTACH name=link-3 h=3")
        assert script.do("C> DETACH h=3 closed=true") == ["B> DETACH h=3 closed=true"]


@pytest.mark.parametrize("role", ["source", "target"])
def test_a_refused_link_is_attached_with_a_null_terminus_and_detached(role: str) -> None:
    """2.6.3: the refusing end's attach has no terminus of its own, and its detach, with closed=true and the
    reason, follows at once; the session goes on."""
    script = ScriptRunner()
    script.do("C> BEGIN")
    attach, detach = script.do(f"C> ATTACH h=1 {role}=/queues/none")
    assert attach.endswith(f"{role}=null")
    assert detach == "B> DETACH h=1 closed=true error=amqp:not-found \"no queue 'none' in vhost '/'\""
    assert script.do("C> DETACH h=1 closed=true") == []
    assert script.do("C> FLOW echo=true") == ["B> FLOW nii=0 iw=400 noi=0"]


REFUSED = [
    ("h=1 source=null role=receiver", "amqp:not-found", "source_required"),
    (
        "h=1 source=dynamic distribution-mode=copy capabilities=rabbitmq:volatile-queue",
        "amqp:not-implemented",
        "a temporary queue cannot be browsed",
    ),
    (f"h=1 source=/queues/q filter={SELECTOR}=red=AND", "amqp:invalid-field", "(at character"),
    ("h=1 source=/queues/q filter=0x468C00000004=red=AND", "amqp:invalid-field", "selector"),
    (f"h=1 source=new filter={SELECTOR}=red=AND", "amqp:invalid-field", "selector"),
    (f"h=1 source=dynamic filter={SELECTOR}=red=AND", "amqp:invalid-field", "selector"),
    ("h=1 target=/queue/q", "amqp:invalid-field", "must begin with /queues/, /exchanges/ or /topics/"),
    ("h=1 target=/queues/", "amqp:invalid-field", "names no queue"),
    ("h=1 target=/queues/a/b", "amqp:invalid-field", "too many segments"),
    ("h=1 target=/queues/%zz", "amqp:invalid-field", "bad percent sequence"),
    ("h=1 target=/queues/q?x", "amqp:invalid-field", "query or fragment"),
    ("h=1 target=/exchanges//key", "amqp:invalid-field", "default exchange"),
    ("h=1 target=/exchanges/amq.default/key", "amqp:invalid-field", "default exchange"),
    ("h=1 target=/exchanges/none/key", "amqp:not-found", "no exchange 'none'"),
    ("h=1 source=/exchanges/none/key", "amqp:invalid-field", "is no source"),
    ("h=1 target=amq.mine", "amqp:unauthorized-access", "reserved prefix"),
    ("h=1 target=coordinator", "amqp:not-implemented", "Transactions not supported"),
    ("h=1 source=/queues/q outcomes=amqp:declared:list", "amqp:not-implemented", "outcomes"),
    ("h=1 source=dynamic capabilities=topic", "amqp:not-implemented", "Dynamic source not supported"),
    ("h=1 target=dynamic capabilities=topic", "amqp:not-implemented", "Dynamic target not supported"),
    ("h=1 target=/queues/q idc=none", "amqp:invalid-field", "initial-delivery-count"),
]


@pytest.mark.rabbitmq("amqp_address_SUITE", "source_undefined_address")
@pytest.mark.rabbitmq("amqp_address_SUITE", "source_queue_absent", "target_queue_absent")
@pytest.mark.rabbitmq("amqp_client_SUITE", "attach_link_to_non_existing_destination")
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "attach_receiver_from_missing_queue")
@pytest.mark.parametrize(("attach", "condition", "words"), REFUSED, ids=[each[0] for each in REFUSED])
def test_every_refusal_has_its_condition_and_its_words(attach: str, condition: str, words: str) -> None:
    """An attach is refused as a link error, with a text that says what would be right."""
    script = ScriptRunner()
    script.do("queue q")
    script.do("C> BEGIN")
    first, second = script.do(f"C> ATTACH {attach}")
    assert first.endswith("=null")
    assert second.startswith(f"B> DETACH h=1 closed=true error={condition} ")
    assert words in second
    assert set(script.world.queues) == {"q"}  # nothing was made for a link that is refused


def test_a_pipelined_transfer_on_a_refused_link_is_discarded() -> None:
    """2.6.3: the refusal may not have reached the sender; its frames are dropped until its detach."""
    script = ScriptRunner()
    script.do("C> BEGIN")
    lines = script.do(
        "C> ATTACH h=0 target=/queues/none ; TRANSFER h=0 ; FLOW h=0 echo=true ; DETACH h=0 closed=true"
    )
    assert [line.split()[1] for line in lines] == ["ATTACH", "DETACH"]


def test_two_links_may_have_one_name_when_their_directions_differ() -> None:
    """2.6.1: a link's name is unique among the links of one direction between two containers."""
    script = ScriptRunner()
    for command in ("queue q", "publish q 1", "C> BEGIN", "C> ATTACH h=0 name=same target=/queues/q"):
        script.do(command)
    assert script.do("C> ATTACH h=1 name=same source=/queues/q")[0].startswith(
        "B> ATTACH name=same h=1 role=sender"
    )
    assert len(script.do("C> FLOW h=1 dc=0 cr=1")) == 1


# --- 2.6.7: credit -------------------------------------------------------------------------------


def test_a_delivery_uses_one_credit_and_counts_one() -> None:
    """2.6.7: "the delivery-count is incremented whenever a message is sent", and link-credit goes down."""
    sender = SenderCredit(LAST)
    sender.set(LAST, 3, drain=False)
    sender.spend(2)
    assert (sender.delivery_count, sender.link_credit) == (1, 1)


def test_a_flow_without_link_credit_changes_no_credit(ends: Ends) -> None:
    """2.7.4: fields that are not set leave the state as it is."""
    mine, theirs = ends.attach(sender=False)
    ends.client.grant(mine, 5)
    ends.step()
    ends.server.receive(
        [Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0)]
    )
    assert theirs.credit.link_credit == 5


# --- 2.6.12: transfers ---------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "sender_settle_mode_unsettled")
def test_unsettled_deliveries_are_known_until_they_are_settled(ends: Ends) -> None:
    """2.6.12: a delivery is in the unsettled maps of both ends until it is settled."""
    mine, _ = ends.attach(sender=True)
    ends.step()
    ends.client.outbound.queue_deliveries(mine, [1], [(b"", b"x")])
    ends.step()
    assert list(ends.client.outbound.unsettled) == [0]
    assert list(ends.server.inbound.unsettled) == [0]
    ends.server.settling.settle_received([0], Accepted())
    ends.step()
    assert not ends.client.outbound.unsettled
    assert not ends.server.inbound.unsettled


def test_a_settled_link_keeps_no_unsettled_deliveries(ends: Ends) -> None:
    """2.6.12: sent settled, the delivery is forgotten when it is sent."""
    mine, _ = ends.attach(sender=True, snd_settle_mode=1)
    ends.step()
    ends.client.outbound.queue_deliveries(mine, [1], [(b"", b"x")])
    (event,) = [event for event in ends.step()[1] if isinstance(event, DeliveriesReceived)]
    assert event.settled
    assert not ends.client.outbound.unsettled
    assert not ends.server.inbound.unsettled


def test_second_mode_settles_in_three_steps(ends: Ends) -> None:
    """2.6.12, figure 2.49: the receiver sends the outcome unsettled, the sender settles, the receiver
    forgets.
    """
    mine, _ = ends.attach(sender=True, rcv_settle_mode=1)
    ends.step()
    ends.client.outbound.queue_deliveries(mine, [1], [(b"", b"x")])
    ends.step()
    ends.server.settling.settle_received([0], Accepted(), settled=False)
    (update,) = ends.step()[0]
    assert isinstance(update, DeliveriesUpdated)
    assert not update.settled
    assert list(ends.server.inbound.unsettled) == [0]
    ends.client.settling.settle_sent([0], Accepted())
    (settled,) = ends.step()[1]
    assert isinstance(settled, DeliveriesSettled)
    assert not ends.server.inbound.unsettled
    assert not ends.client.outbound.unsettled


def test_nothing_is_sent_without_window() -> None:
    """2.5.6: no transfer is sent while the remote-incoming-window is used up."""
    ends = Ends(window=2)
    mine, theirs = ends.attach(sender=False)
    ends.client.grant(mine, 5)
    ends.step()
    ends.server.outbound.queue_deliveries(theirs, [1, 2, 3], [(b"", b"x")] * 3)
    ends.server.pump(1 << 20)
    frames = read_all(b"".join(bytes(piece) for piece in ends.server.take_output()))
    assert len(frames) == 2
    assert ends.server.outbound.turns
    assert ends.server.outgoing.remote_incoming_window == 0


def test_pieces_fit_the_peers_frames(ends: Ends) -> None:
    """2.6.14: a message larger than max-frame-size goes in several transfers, more=true on all but the
    last, and each fits."""
    mine, theirs = ends.attach(sender=False)
    ends.client.grant(mine, 1)
    ends.step()
    ends.server.outbound.queue_deliveries(theirs, [9], [(b"head", b"x" * 3000)])
    ends.server.pump(1 << 20)
    data = b"".join(bytes(piece) for piece in ends.server.take_output())
    sizes, pos = [], 0
    while pos < len(data):
        sizes.append(int.from_bytes(data[pos : pos + 4], "big"))
        pos += sizes[-1]
    assert max(sizes) <= 512
    transfers = read_all(data)
    assert [transfer.more for transfer in transfers] == [True] * (len(transfers) - 1) + [False]
    assert len({(transfer.handle, transfer.delivery_id) for transfer in transfers}) == 1


def test_nothing_is_sent_behind_the_end(ends: Ends) -> None:
    """2.5.5: frames that an end still had to send, or is given after its end, are not sent."""
    mine, theirs = ends.attach(sender=False)
    ends.client.grant(mine, 5)
    ends.step()
    ends.server.outbound.queue_deliveries(theirs, [1], [(b"", b"x")])
    ends.server.end()
    ends.server.outbound.queue_deliveries(theirs, [2], [(b"", b"y")])
    assert not ends.server.outbound.turns
    assert ends.server.pump(1 << 20) == (0, [])
    (frame,) = read_all(b"".join(bytes(piece) for piece in ends.server.take_output()))
    assert isinstance(frame, End)
