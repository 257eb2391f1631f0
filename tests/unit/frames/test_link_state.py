"""The state of links and channels that follows from recorded frames."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.observe.frames import link_state
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Role,
    Source,
    Target,
    Transfer,
)

# The client's channel and handle, and the broker's: of different numbers, so that none stands for another.
CHANNEL = {"in": 3, "out": 7}
HANDLE = {"in": 1, "out": 2}


class Frames:
    """One connection with a session; `last` has the events of the last frame."""

    def __init__(self) -> None:
        self.state = link_state.ObservedConnection()
        self.last: list[link_state.LinkEvent] = []
        self.came(Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=9))
        self.went(Begin(remote_channel=3, next_outgoing_id=50, incoming_window=10, outgoing_window=9))

    def came(self, body: Any) -> None:
        self.last = self.state.apply("in", CHANNEL["in"], body)

    def went(self, body: Any) -> None:
        self.last = self.state.apply("out", CHANNEL["out"], body)

    @property
    def session(self) -> link_state.ObservedSession:
        found = self.state.session("in", CHANNEL["in"])
        assert found is not None
        assert found is self.state.session("out", CHANNEL["out"])
        return found

    def receiver(self, count: int = 0, **given: Any) -> link_state.ObservedLink:
        self.came(Attach(name="l", handle=HANDLE["in"], role=Role.RECEIVER, source=Source(address="q")))
        answer = Attach(name="l", handle=HANDLE["out"], role=Role.SENDER, initial_delivery_count=count)
        self.went(answer)
        return self.session.links["in"][HANDLE["in"]]

    def sender(self) -> link_state.ObservedLink:
        attach = Attach(
            name="l",
            handle=HANDLE["in"],
            role=Role.SENDER,
            target=Target(address="q"),
            initial_delivery_count=0,
        )
        self.came(attach)
        self.went(Attach(name="l", handle=HANDLE["out"], role=Role.RECEIVER))
        self.went(flow("out", credit=10))
        return self.session.links["in"][HANDLE["in"]]


def flow(
    direction: link_state.Direction, *, credit: int | None = None, count: int | None = 0, **given: Any
) -> Flow:
    fields: dict[str, Any] = {
        "next_incoming_id": 50 if direction == "in" else 0,
        "incoming_window": 100,
        "next_outgoing_id": 0 if direction == "in" else 50,
        "outgoing_window": 9,
        "handle": HANDLE[direction],
        "delivery_count": count,
        "link_credit": credit,
    }
    return Flow(**(fields | given))


def transfer(direction: link_state.Direction, number: int | None, **given: Any) -> Transfer:
    tag = None if number is None else bytes((number,))
    return Transfer(**({"handle": HANDLE[direction], "delivery_id": number, "delivery_tag": tag} | given))


def settle(role: bool, first: int, last: int | None = None, *, settled: bool = True) -> Disposition:
    return Disposition(role=role, first=first, last=last, settled=settled, state=Accepted())


@pytest.fixture
def frames() -> Frames:
    return Frames()


def test_a_session_has_the_channels_of_both_sides(frames: Frames) -> None:
    """The session exists until each side has ended it."""
    session = frames.session
    assert session.channel == CHANNEL["in"]
    assert session.established
    assert frames.last == [link_state.BeginObserved(session, answered=True)]
    frames.went(End())
    assert frames.last == [link_state.EndObserved(session, answered=False)]
    assert frames.state.sessions() == [session]
    frames.came(End())
    assert frames.last == [link_state.EndObserved(session, answered=True)]
    assert frames.state.sessions() == []


def test_opens_are_kept_by_side(frames: Frames) -> None:
    """An open is no event of a session or link."""
    frames.went(Open(container_id="b"))
    assert frames.last == []
    assert frames.state.opened["out"].container_id == "b"


def test_a_link_has_the_handles_of_both_sides_and_the_address_of_either(frames: Frames) -> None:
    frames.came(Attach(name="l", handle=1, role=Role.RECEIVER, source=Source(dynamic=True)))
    (asked,) = frames.last
    assert isinstance(asked, link_state.AttachObserved)
    assert not asked.answered
    assert not asked.link.attached
    frames.went(Attach(name="l", handle=2, role=Role.SENDER, source=Source(address="made")))
    assert frames.last == [link_state.AttachObserved(frames.session, asked.link, answered=True)]
    assert (asked.link.direction, asked.link.address, asked.link.handles) == ("out", "made", HANDLE)
    assert asked.link.attached


def test_a_sender_and_a_receiver_of_one_name_are_two_links(frames: Frames) -> None:
    """2.6.1: a link is identified by its name and its direction."""
    frames.came(Attach(name="l", handle=0, role=Role.RECEIVER, source=Source(address="q")))
    frames.came(Attach(name="l", handle=1, role=Role.SENDER, target=Target(address="q")))
    frames.went(Attach(name="l", handle=0, role=Role.RECEIVER))
    frames.went(Attach(name="l", handle=1, role=Role.SENDER))
    links = frames.session.links
    assert links["in"][0] is links["out"][1]
    assert links["in"][1] is links["out"][0]


def test_a_name_may_be_attached_again(frames: Frames) -> None:
    first = frames.receiver()
    frames.came(Detach(handle=HANDLE["in"]))
    assert frames.last == [link_state.DetachObserved(frames.session, first, answered=False)]
    frames.went(Detach(handle=HANDLE["out"]))
    assert frames.last == [link_state.DetachObserved(frames.session, first, answered=True)]
    assert frames.receiver() is not first


def test_a_flow_without_delivery_count_counts_from_the_first(frames: Frames) -> None:
    """2.7.4: the flow was sent before the attach had come."""
    link = frames.receiver(count=9)
    frames.went(transfer("out", 0))
    frames.came(flow("in", credit=5, count=None))
    assert link.credit.link_credit == 4


def test_a_sender_that_counts_back_gives_nothing_up(frames: Frames) -> None:
    """Its flow was computed before its last deliveries."""
    link = frames.sender()
    for number in range(3):
        frames.came(transfer("in", number))
    frames.came(flow("in", count=1))
    assert (link.credit.delivery_count, link.credit.link_credit) == (3, 7)


def test_an_aborted_delivery_is_not_unsettled(frames: Frames) -> None:
    """The delivery counts, but has no state afterwards."""
    link = frames.sender()
    frames.came(transfer("in", 0, more=True))
    frames.came(transfer("in", None, aborted=True, more=True))
    assert link.unsettled == set()
    assert link.partial is None
    assert link.credit.delivery_count == 1


def test_deliveries_beyond_the_credit_count(frames: Frames) -> None:
    """The state follows the frames, whichever side broke a rule."""
    link = frames.receiver()
    frames.went(transfer("out", 0))
    assert (link.credit.delivery_count, link.credit.link_credit) == (1, 0)


def test_a_disposition_names_the_deliveries_that_its_role_has_received(frames: Frames) -> None:
    """A receiver's names those of the other side, a sender's its own."""
    link = frames.receiver()
    for number in range(3):
        frames.went(transfer("out", number))
    frames.went(transfer("out", 3, settled=True))
    frames.went(settle(Role.RECEIVER, 0))
    assert frames.last == []
    frames.came(settle(Role.RECEIVER, 0, settled=False))
    assert frames.last == [link_state.DispositionObserved(frames.session, link, {0}, settled=False)]
    frames.went(settle(Role.SENDER, 0))
    assert frames.last == [link_state.DispositionObserved(frames.session, link, {0}, settled=True)]
    frames.came(settle(Role.RECEIVER, 0, 2**31 - 1))
    assert frames.last == [link_state.DispositionObserved(frames.session, link, {1, 2}, settled=True)]
    assert link.unsettled == set()


def test_transfers_that_the_begin_of_the_other_side_crosses_count() -> None:
    """The window that the begin opens starts with the first transfer."""
    state = link_state.ObservedConnection()
    state.apply("in", 0, Begin(next_outgoing_id=5, incoming_window=9, outgoing_window=9))
    state.apply("in", 0, transfer("in", 0))
    state.apply("out", 0, Begin(remote_channel=0, next_outgoing_id=0, incoming_window=9, outgoing_window=9))
    session = state.session("in", 0)
    assert session.windows["in"].left == 8


def test_nothing_happens_on_a_link_that_a_side_has_detached(frames: Frames) -> None:
    """Frames that cross its detach count in the window alone."""
    link = frames.receiver()
    frames.came(Detach(handle=HANDLE["in"]))
    frames.went(transfer("out", 0))
    assert frames.last == []
    assert link.unsettled == set()
    assert frames.session.windows["out"].next_id == 51


def test_a_link_that_was_there_is_known_by_its_handles() -> None:
    """Its session has one channel in both directions; the rest of its window is unknown."""
    state = link_state.ObservedConnection()
    link = link_state.ObservedLink("l", "out", handles={"in": 4, "out": 5}, attached=True, recorded=False)
    state.know(9, link)
    (event,) = state.apply("out", 9, Transfer(handle=5, delivery_id=7))
    assert isinstance(event, link_state.TransferObserved)
    assert event.link is link
    assert event.session.windows["out"].left is None


def test_a_run_of_transfers_is_what_its_frames_are() -> None:
    run, single = Frames(), Frames()
    links = run.sender(), single.sender()
    numbers = [2**32 - 2, 2**32 - 1, 0, 1]
    assert (
        run.session.transfers("in", HANDLE["in"], [(numbers[0], numbers[-1])], 4, settled=False) is links[0]
    )
    for number in numbers:
        single.came(Transfer(handle=HANDLE["in"], delivery_id=number))
    for frames, link in zip((run, single), links, strict=True):
        assert link.unsettled == set(numbers)
        assert link.credit.delivery_count == 4
        assert frames.session.windows["in"].next_id == 4


def test_a_copy_goes_its_own_way(frames: Frames) -> None:
    link = frames.receiver()
    other = link.copy()
    session = frames.session.copy_with(other)
    session.apply("out", transfer("out", 0))
    assert (link.unsettled, other.unsettled) == (set(), {0})
    assert (link.credit.delivery_count, other.credit.delivery_count) == (0, 1)
    assert frames.session.windows["out"].next_id == 50


class Methods:
    """One connection with an open channel; `last` has the events of the last method."""

    def __init__(self) -> None:
        self.state = link_state.ObservedChannels()
        self.last: list[link_state.ChannelEvent] = []
        self.came(methods.ChannelOpen())
        self.went(methods.ChannelOpenOk())

    def came(self, method: Any) -> None:
        self.last = self.state.apply("in", 1, method)

    def went(self, method: Any) -> None:
        self.last = self.state.apply("out", 1, method)

    @property
    def channel(self) -> link_state.ObservedChannel:
        return self.state.by_number[1]

    def consumer(self, tag: str = "c", **given: Any) -> link_state.ObservedConsumer:
        self.came(methods.BasicConsume(queue="q", consumer_tag=tag, **given))
        (asked,) = self.last
        assert isinstance(asked, link_state.ConsumeObserved)
        self.went(methods.BasicConsumeOk(tag or "made"))
        return asked.consumer

    def deliver(self, *tags: int, consumer: str = "c") -> None:
        for tag in tags:
            self.went(methods.BasicDeliver(consumer_tag=consumer, delivery_tag=tag, routing_key="q"))


def test_a_channel_is_there_until_both_sides_have_closed_it() -> None:
    """Frames that cross the first close have no effect."""
    channels = link_state.ObservedChannels()
    (opened,) = channels.apply("in", 1, methods.ChannelOpen())
    assert opened == link_state.ChannelOpened(channels.by_number[1])
    channel = channels.by_number[1]
    assert channels.apply("out", 1, methods.ChannelClose(404, "no queue")) == [
        link_state.ChannelEnded(channel, False)
    ]
    channels.apply("in", 1, methods.BasicPublish(routing_key="q"))
    assert channel.published == 0
    assert channels.apply("in", 1, methods.ChannelCloseOk()) == [link_state.ChannelEnded(channel, True)]
    assert channels.by_number == {}


def test_methods_of_the_connection_are_of_no_channel() -> None:
    """Channel 0 has no consumers, deliveries or confirms."""
    channels = link_state.ObservedChannels()
    assert channels.apply("out", 0, methods.ConnectionClose(320, "bye")) == []
    assert channels.by_number == {}


def test_a_channel_without_open_was_there_before() -> None:
    channels = link_state.ObservedChannels()
    channels.apply("in", 3, methods.BasicPublish(routing_key="q"))
    assert not channels.by_number[3].recorded


@pytest.mark.parametrize("tag", ["c", ""])
def test_a_consumer_has_the_tag_that_the_broker_confirms(tag: str) -> None:
    """It is its own, or one that the broker has chosen."""
    frames = Methods()
    consumer = frames.consumer(tag)
    assert frames.channel.consumers == {tag or "made": consumer}
    assert consumer.tag == (tag or "made")


def test_a_consumer_that_wants_no_answer_consumes_at_once() -> None:
    frames = Methods()
    frames.came(methods.BasicConsume(queue="q", consumer_tag="c", no_wait=True))
    consumer = frames.channel.consumers["c"]
    frames.came(methods.BasicCancel("c", no_wait=True))
    assert frames.last == [link_state.ConsumerEnded(frames.channel, consumer, by_broker=False)]


def test_a_cancelled_consumer_ends_with_the_answer() -> None:
    """Deliveries that cross its cancel belong to the consumer."""
    frames = Methods()
    consumer = frames.consumer()
    frames.came(methods.BasicCancel("c"))
    frames.deliver(1)
    assert frames.last == [link_state.MessageDelivered(frames.channel, consumer, 1, no_ack=False)]
    frames.went(methods.BasicCancelOk("c"))
    assert frames.last == [link_state.ConsumerEnded(frames.channel, consumer, by_broker=False)]


def test_the_broker_may_cancel_a_consumer() -> None:
    frames = Methods()
    consumer = frames.consumer()
    frames.went(methods.BasicCancel("c"))
    assert frames.last == [link_state.ConsumerEnded(frames.channel, consumer, by_broker=True)]


def test_settlements_name_deliveries_of_several_consumers() -> None:
    """`multiple` covers tags up to the given one; tag 0 covers all."""
    frames = Methods()
    first, second = frames.consumer("a"), frames.consumer("b")
    frames.deliver(1, 3, consumer="a")
    frames.deliver(2, 4, consumer="b")
    frames.came(methods.BasicAck(3, multiple=True))
    assert frames.last == [
        link_state.SettlementObserved(frames.channel, first, [1, 3], gives_back=False),
        link_state.SettlementObserved(frames.channel, second, [2], gives_back=False),
    ]
    assert frames.channel.unsettled == {4: second}
    frames.came(methods.BasicNack(0, multiple=True))
    assert frames.last == [link_state.SettlementObserved(frames.channel, second, [4], gives_back=True)]


def test_a_settlement_of_what_is_not_held_names_nothing() -> None:
    """The broker closes the channel for it."""
    frames = Methods()
    frames.came(methods.BasicReject(9))
    assert frames.last == []


def test_recovery_gives_everything_back() -> None:
    """The broker delivers the messages again, with other tags."""
    frames = Methods()
    consumer = frames.consumer()
    frames.deliver(1, 2)
    frames.came(methods.BasicRecover(requeue=True))
    assert frames.last == [link_state.SettlementObserved(frames.channel, consumer, [1, 2], gives_back=True)]
    assert frames.channel.unsettled == {}


def test_what_needs_no_acknowledgement_is_settled() -> None:
    """A consumer has the flag for all deliveries, a basic.get its own."""
    frames = Methods()
    consumer = frames.consumer(no_ack=True)
    frames.deliver(1)
    assert frames.last == [link_state.MessageDelivered(frames.channel, consumer, 1, no_ack=True)]
    for no_ack in (True, True, False):
        frames.came(methods.BasicGet(queue="q", no_ack=no_ack))
    frames.went(methods.BasicGetEmpty())
    frames.went(methods.BasicGetOk(delivery_tag=2, routing_key="q", message_count=0))
    frames.went(methods.BasicGetOk(delivery_tag=3, routing_key="q", message_count=0))
    assert frames.last == [
        link_state.MessageDelivered(frames.channel, frames.channel.getter, 3, no_ack=False)
    ]
    assert frames.channel.unsettled == {3: frames.channel.getter}


def test_confirms_have_the_numbers_of_publishes_since_confirm_select() -> None:
    """They are in order, however the broker groups its confirms."""
    frames = Methods()
    frames.came(methods.BasicPublish(routing_key="q"))
    frames.came(methods.ConfirmSelect())
    frames.came(methods.ConfirmSelect())
    for _ in range(4):
        frames.came(methods.BasicPublish(routing_key="q"))
    frames.went(methods.BasicNack(3))
    assert frames.last == [link_state.MessagesConfirmed(frames.channel, [3], refused=True)]
    frames.went(methods.BasicAck(4, multiple=True))
    assert frames.last == [link_state.MessagesConfirmed(frames.channel, [1, 2, 4], refused=False)]
    assert frames.channel.unconfirmed == {}


def test_without_confirms_nothing_is_unconfirmed() -> None:
    frames = Methods()
    frames.came(methods.BasicPublish(routing_key="q"))
    assert (frames.channel.published, frames.channel.unconfirmed) == (1, {})


def test_the_broker_may_ask_for_no_more_publishes() -> None:
    frames = Methods()
    frames.went(methods.ChannelFlow(active=False))
    assert frames.channel.stopped
    frames.went(methods.ChannelFlow(active=True))
    assert not frames.channel.stopped
