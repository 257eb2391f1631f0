"""One AMQP 1.0 session end, in either role: part 2, sections 2.5 and 2.6.

Frame bodies go in (`receive`); events and frames (`take_output`) come out. An `AmqpLinkError` detaches the
link, an `AmqpSessionError` ends the session, and an `AmqpConnectionError` leaves `receive` for the owner,
which must close the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from enum import Enum, auto
from typing import Any, Final, assert_never

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.credit import OUTGOING_WINDOW, IncomingWindow, OutgoingWindow
from amqp10broker.protocols.amqp10.errors import (
    AmqpConnectionError,
    AmqpError,
    AmqpLinkError,
    AmqpSessionError,
    Condition,
)
from amqp10broker.protocols.amqp10.link import (
    LinkDetached,
    LinkFlowed,
    LinkState,
    PumpEvent,
    ReceiverLink,
    SenderLink,
    SessionEnded,
    SessionEvent,
    TransferFrame,
    TransferRun,
)
from amqp10broker.protocols.amqp10.links import Inbound, Links, Outbound, part_of_run
from amqp10broker.protocols.amqp10.performatives import Attach, Begin, Detach, Disposition, End, Flow
from amqp10broker.protocols.amqp10.settling import DispositionRun, Output, Settling, to_error
from amqp10broker.protocols.connection import FRAME_BYTES, Unfinished
from amqp10broker.protocols.serial import diff

LinkFrame = TransferRun | TransferFrame | Flow | Attach | Detach

FIELDS_BYTES: Final = 65_536
"""The size counted for a held frame that has fields of any length."""

PLAIN_BYTES: Final = 448
"""The size counted for a flow or a detach without such fields: each of thousands of links may have one."""


class HeldFrames:
    """Frames for links that their owners cannot accept yet, in order.

    All frames for the handle of a held link wait, even an attach that uses its handle or name again. For a
    link that is already attached, deliveries and flows pass, but its detach, and frames after that, wait.
    Frames count against the session's window first; their size is bounded with the connection's incomplete
    deliveries.
    """

    __slots__ = ("_unfinished", "by_remote")

    def __init__(self, unfinished: Unfinished) -> None:
        self._unfinished = unfinished
        self.by_remote: dict[int, Held] = {}

    def __iter__(self) -> Iterator[SenderLink | ReceiverLink]:
        return iter(dict.fromkeys(held.link for held in self.by_remote.values()))

    def hold(self, link: SenderLink | ReceiverLink) -> None:
        assert link.remote_handle is not None
        self.by_remote.setdefault(link.remote_handle, Held(link))

    def take(self, frame: LinkFrame) -> bool:
        handle = frame.performative.handle if isinstance(frame, TransferFrame) else frame.handle
        assert handle is not None
        held = self.by_remote.get(handle)
        if held is None:
            if type(frame) is not Attach:
                return False
            named = (frame.name, SenderLink if frame.role else ReceiverLink)
            waiting = self.by_remote.values()
            held = next((each for each in waiting if (each.link.name, type(each.link)) == named), None)
            if held is None:
                return False
            self.by_remote[handle] = held
        elif (
            not held.frames
            and held.link.state is not LinkState.ATTACH_RECEIVED
            and type(frame) is not Detach
            and type(frame) is not Attach
        ):
            return False
        held.held_bytes += self._unfinished.keep(_size(frame))
        held.frames.append(frame)
        return True

    def release(self, link: SenderLink | ReceiverLink) -> Sequence[LinkFrame]:
        frames: Sequence[LinkFrame] = ()
        for handle, held in list(self.by_remote.items()):
            if held.link is link:
                del self.by_remote[handle]
                frames = held.frames
                self._unfinished.give_back(held.held_bytes)
                held.held_bytes = 0
        return frames

    def clear(self) -> None:
        for link in list(self):
            self.release(link)


@dataclass(eq=False, slots=True)
class Held:
    link: SenderLink | ReceiverLink
    frames: list[LinkFrame] = field(default_factory=list)
    held_bytes: int = 0


def _size(frame: LinkFrame) -> int:
    # This is counted in addition to the fixed size of each frame.
    if type(frame) is TransferRun:
        return sum(map(len, frame.payloads)) + FRAME_BYTES * (len(frame.payloads) - 1)
    if type(frame) is TransferFrame:
        return len(frame.payload)
    if type(frame) is Flow:
        return PLAIN_BYTES if frame.properties is None else FIELDS_BYTES
    return PLAIN_BYTES if type(frame) is Detach and frame.error is None else FIELDS_BYTES


class SessionState(Enum):
    UNMAPPED = auto()
    BEGIN_SENT = auto()
    BEGIN_RECEIVED = auto()
    MAPPED = auto()
    END_SENT = auto()
    END_RECEIVED = auto()
    DISCARDING = auto()
    """This end ended with an error: all frames but the peer's end are discarded."""


class SessionInput(Enum):
    SEND_BEGIN = auto()
    RECEIVE_BEGIN = auto()
    SEND_END = auto()
    SEND_END_ERROR = auto()
    RECEIVE_END = auto()


# Section 2.5.5. An absent pair is refused. The table does not contain the role that begins first.
SESSION_TRANSITIONS: Final[dict[tuple[SessionState, SessionInput], SessionState]] = {
    (SessionState.UNMAPPED, SessionInput.SEND_BEGIN): SessionState.BEGIN_SENT,
    (SessionState.UNMAPPED, SessionInput.RECEIVE_BEGIN): SessionState.BEGIN_RECEIVED,
    (SessionState.BEGIN_SENT, SessionInput.RECEIVE_BEGIN): SessionState.MAPPED,
    (SessionState.BEGIN_RECEIVED, SessionInput.SEND_BEGIN): SessionState.MAPPED,
    (SessionState.MAPPED, SessionInput.SEND_END): SessionState.END_SENT,
    (SessionState.MAPPED, SessionInput.SEND_END_ERROR): SessionState.DISCARDING,
    (SessionState.MAPPED, SessionInput.RECEIVE_END): SessionState.END_RECEIVED,
    (SessionState.END_RECEIVED, SessionInput.SEND_END): SessionState.UNMAPPED,
    (SessionState.END_SENT, SessionInput.RECEIVE_END): SessionState.UNMAPPED,
    (SessionState.DISCARDING, SessionInput.RECEIVE_END): SessionState.UNMAPPED,
}


OnEvent = Callable[[SessionEvent], object]
OnFault = Callable[[SenderLink | ReceiverLink | None, AmqpError, bool], None]


class Session:
    def __init__(
        self,
        channel: int,
        *,
        incoming_window: int,
        handle_max: int,
        frame_size_max: int,
        window_closed: bool = False,
        unfinished: Unfinished | None = None,
        on_fault: OnFault = lambda link, error, refused: None,
    ) -> None:
        """Make an unmapped session end. `frame_size_max`: bytes of the largest frame that the *peer* takes.
        `unfinished`: bounds the incomplete deliveries of the connection; None: no bound. `on_fault`: called
        with each error sent to the peer, its link (None: the session's), and whether that link's attach was
        refused.
        """
        self.channel = channel
        self.state = SessionState.UNMAPPED
        self.incoming = IncomingWindow(incoming_window, closed=window_closed)
        self.outgoing = OutgoingWindow()
        self._on_fault = on_fault
        self._remote_channel = channel
        self._link_fault: tuple[ReceiverLink, AmqpLinkError] | None = None
        self._rest: TransferRun | None = None
        self.output = output = Output(channel, frame_size_max)
        unfinished = unfinished or Unfinished()
        self.held = HeldFrames(unfinished)
        self.inbound = Inbound(self.incoming, unfinished)
        self.outbound = Outbound(self.outgoing, output, channel, frame_size_max)
        self.settling = Settling(output, self.inbound.unsettled, self.outbound.unsettled)
        self.links = Links(channel, handle_max, output, self.inbound, self.outbound, self.settling, on_fault)

    # --- queries of the owner ---------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether at most the peer's end is still expected."""
        return self.state not in (SessionState.MAPPED, SessionState.BEGIN_SENT, SessionState.BEGIN_RECEIVED)

    @property
    def unsettled(self) -> int:
        return len(self.inbound.unsettled) + len(self.outbound.unsettled)

    def take_output(self) -> list[bytes | memoryview]:
        """Return the bytes to write, the dispositions collected until now first."""
        self._flush()
        output = self.output
        pieces, output.pieces = output.pieces, []
        return pieces

    # --- begin and end ----------------------------------------------------------------------------

    def begin(self) -> None:
        answer = self.state is SessionState.BEGIN_RECEIVED
        self._move(SessionInput.SEND_BEGIN)
        self.output.write(
            Begin(
                remote_channel=self._remote_channel if answer else None,
                next_outgoing_id=self.outgoing.next_outgoing_id,
                incoming_window=self.incoming.advertised,
                outgoing_window=OUTGOING_WINDOW,
                handle_max=self.links.handle_max,
            )
        )
        self.incoming.flow_due = False

    def receive_begin(self, channel: int, begin: Begin) -> None:
        self._move(SessionInput.RECEIVE_BEGIN)
        self._remote_channel = channel
        self.incoming.next_incoming_id = begin.next_outgoing_id
        self.outgoing.remote_incoming_window = begin.incoming_window
        self.outgoing.remote_outgoing_window = begin.outgoing_window
        self.links.handle_max = min(self.links.handle_max, begin.handle_max)

    def end(self, error: AmqpError | None = None) -> None:
        self._flush()
        if self.state is SessionState.MAPPED and error is not None:
            self._move(SessionInput.SEND_END_ERROR)
        else:
            self._move(SessionInput.SEND_END)
        self.output.write(End(error=to_error(error)))
        self.held.clear()
        self.links.forget_all()
        self.outbound.close()
        if error is not None:
            self._on_fault(None, error, False)

    # --- frames in --------------------------------------------------------------------------------

    def receive(self, items: Sequence[object]) -> list[SessionEvent]:
        events: list[SessionEvent] = []
        self.receive_each(items, events.append)
        return events

    def release(self, link: SenderLink | ReceiverLink, on_event: OnEvent) -> None:
        """Handle the frames that were held for a link, as `receive_each` does."""
        self._each(self.held.release(link), self._on_link_frame, on_event)

    def receive_each(self, items: Sequence[object], on_event: OnEvent) -> None:
        """Handle frame bodies in order, and call `on_event` with each event at once.

        So the owner's action (answer an attach, refuse a message) takes effect on the following frames. A
        fault comes after the events of the frames before it, and only if the owner has not ended the link or
        the session by then. Raises `AmqpConnectionError`.
        """
        self._each(items, self._handle, on_event)

    def _each(
        self, items: Sequence[Any], handle: Callable[[Any, list[SessionEvent]], None], on_event: OnEvent
    ) -> None:
        for item in items:
            if self.state is not SessionState.MAPPED:
                if self.state is SessionState.UNMAPPED:
                    raise self._not_permitted(item)
                if self.state in (SessionState.DISCARDING, SessionState.END_SENT) and type(item) is not End:
                    continue
            events: list[SessionEvent] = []
            session_fault: AmqpSessionError | None = None
            try:
                handle(item, events)
            except AmqpSessionError as fault:
                session_fault = fault
            faulty, self._link_fault = self._link_fault, None
            rest, self._rest = self._rest, None
            for event in events:
                on_event(event)
            if rest is not None:
                # They are handled one by one: each changes how many can be handled together.
                ones = [part_of_run(rest, at, at + 1) for at in range(len(rest.delivery_ids))]
                self._each(ones, self._on_link_frame, on_event)
            if faulty is not None and faulty[0].attached and not self.ended:
                link, link_fault = faulty
                if link.manages:
                    text = link_fault.description
                    if link_fault.condition == Condition.TRANSFER_LIMIT_EXCEEDED:
                        text = "insufficient credit (0) for management link from client to RabbitMQ"
                    session_fault = AmqpSessionError(link_fault.condition, text, link_fault.info)
                else:
                    unsent = self.links.detach(link, link_fault)
                    on_event(LinkDetached(link, True, None, link_fault, unsent))
            if session_fault is not None and not self.ended:
                self.end(session_fault)
                on_event(SessionEnded(to_error(session_fault), session_fault))

    def _handle(self, item: object, events: list[SessionEvent]) -> None:
        if self.output.tap is not None:
            self.output.tap.received(item)
        match item:
            case TransferRun():
                violation = self.incoming.count(len(item.delivery_ids))
                if violation is None:
                    self._on_link_frame(item, events)
                else:
                    self._on_link_frame(part_of_run(item, 0, violation), events)
                    raise self.incoming.violation()
            case DispositionRun():
                self.settling.on_run(item, events)
            case Flow():
                self._on_flow(item, events)
            case TransferFrame():
                if self.incoming.count(1) is not None:
                    raise self.incoming.violation()
                self._on_link_frame(item, events)
            case Disposition():
                last = item.first if item.last is None else item.last
                run = DispositionRun(item.role, item.settled, item.state, [(item.first, last)])
                self.settling.on_run(run, events)
            case Attach() | Detach():
                self._on_link_frame(item, events)
            case End():
                self._on_end(item, events)
            case Begin():
                text = f"Unexpected frame: begin on channel {self._remote_channel}, which is in use"
                raise AmqpSessionError(Condition.ILLEGAL_STATE, text)
            case _:
                raise self._not_permitted(item)

    def _not_permitted(self, item: object) -> AmqpConnectionError:
        return AmqpConnectionError(
            Condition.ILLEGAL_STATE,
            f"{type(item).__name__.lower()} is not permitted on channel {self.channel} now",
        )

    def _on_link_frame(self, frame: LinkFrame, events: list[SessionEvent]) -> None:
        # The session's part of the frame is already handled.
        if self.held.by_remote and self.held.take(frame):
            return
        match frame:
            case TransferRun():
                link = self._receiver(frame.handle)
                if link is not None and frame.delivery_ids:
                    try:
                        self._rest = self.inbound.take_run(link, frame, events)
                    except AmqpLinkError as fault:
                        self._link_fault = (link, fault)
            case TransferFrame():
                link = self._receiver(frame.performative.handle)
                if link is not None:
                    try:
                        self.inbound.take_transfer(link, frame.performative, frame.payload, events)
                    except AmqpLinkError as fault:
                        self._link_fault = (link, fault)
            case Flow():
                self._on_link_flow(frame, events)
            case Attach():
                self.links.on_attach(frame, events)
            case Detach():
                self.links.on_detach(frame, events)
            case _:
                assert_never(frame)

    def _receiver(self, handle: int) -> ReceiverLink | None:
        # None if the link's frames must be discarded.
        link = self.links.by_remote.get(handle)
        if link is None:
            raise AmqpSessionError(Condition.UNATTACHED_HANDLE, f"Unknown link handle: {handle}")
        if link.state is LinkState.DETACH_SENT:
            return None
        if type(link) is not ReceiverLink:
            raise AmqpSessionError(
                Condition.ERRANT_LINK, f"transfer on handle {handle}, whose peer end is the receiver"
            )
        return link

    def _on_flow(self, flow: Flow, events: list[SessionEvent]) -> None:
        self.outgoing.update(flow)
        # "the endpoint MUST update next-incoming-id directly from next-outgoing-id of the frame" (2.5.6).
        self.incoming.next_incoming_id = flow.next_outgoing_id
        if flow.handle is None:
            if flow.echo:
                self.send_session_flow()
            return
        self._on_link_frame(flow, events)

    def _on_link_flow(self, flow: Flow, events: list[SessionEvent]) -> None:
        assert flow.handle is not None
        link = self.links.by_remote.get(flow.handle)
        if link is None:
            raise AmqpSessionError(Condition.UNATTACHED_HANDLE, f"Unattached link handle: {flow.handle}")
        if link.state is LinkState.DETACH_SENT:
            return
        if flow.available is not None:
            link.peer_available = flow.available
        if flow.properties is not None:
            link.peer_properties = flow.properties
        if type(link) is SenderLink:
            if flow.link_credit is not None:
                link.credit.set(flow.delivery_count, flow.link_credit, drain=flow.drain)
        else:
            assert type(link) is ReceiverLink
            count = flow.delivery_count
            if count is not None and diff(count, link.credit.delivery_count) > 0:
                # A sender that drained has advanced its delivery-count: the credit is used up to there.
                link.credit.follow(count)
                self.inbound.grants[link] = None
            if flow.echo:
                self.send_flow(link)
        events.append(LinkFlowed(link, flow))

    def _on_end(self, performative: End, events: list[SessionEvent]) -> None:
        answered = self.state is SessionState.MAPPED
        self._move(SessionInput.RECEIVE_END)
        self.held.clear()
        if answered:
            events.append(SessionEnded(performative.error, None))

    # --- flow -------------------------------------------------------------------------------------

    def send_session_flow(self) -> None:
        self.output.write(self._flow())
        self.incoming.flow_due = False

    def send_flow(
        self,
        link: SenderLink | ReceiverLink,
        *,
        available: int | None = None,
        drain: bool | None = None,
        echo: bool = False,
        properties: Any = None,
    ) -> None:
        """Send a flow of a link. `drain`: sender links repeat the receiver's last value; None: the link's."""
        flow = self._flow()
        flow.handle = link.handle
        flow.delivery_count = link.credit.delivery_count
        flow.link_credit = max(0, link.credit.link_credit)
        flow.available = available
        if type(link) is SenderLink:
            flow.drain = link.credit.drain if drain is None else drain
        else:
            assert type(link) is ReceiverLink
            flow.drain = link.drain
            link.credit.granted = None
        flow.echo = echo
        flow.properties = properties
        self.output.write(flow)

    def drained(self, link: SenderLink, *, available: int) -> None:
        """End a drain: forfeit the remaining credit and notify the peer in one flow."""
        link.credit.forfeit()
        self.send_flow(link, available=available, drain=True)

    def grant(self, link: ReceiverLink, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        link.credit.grant(credit)
        link.drain = drain
        self.send_flow(link, echo=echo)

    def _flow(self) -> Flow:
        incoming = self.incoming
        return Flow(
            next_incoming_id=incoming.next_incoming_id,
            incoming_window=incoming.advertised,
            next_outgoing_id=self.outgoing.next_outgoing_id,
            outgoing_window=OUTGOING_WINDOW,
        )

    def _flush(self) -> None:
        # The order is: outcomes, then grants, then the session's own window.
        if self.state not in (SessionState.MAPPED, SessionState.END_RECEIVED):
            # No frame may follow this end's end (2.5.5).
            self.settling.waiting.clear()
            return
        if self.settling.waiting:
            self.settling.flush()
        if self.state is SessionState.END_RECEIVED:
            return
        for link in self.inbound.grants:
            if link.credit.granted is None or not link.attached:
                continue
            delivery_count, link_credit = link.credit.granted
            flow = self._flow()
            flow.handle = link.handle
            flow.delivery_count = delivery_count
            flow.link_credit = link_credit
            link.credit.granted = None
            self.output.write(flow)
        self.inbound.grants.clear()
        if self.incoming.flow_due:
            self.send_session_flow()

    # --- deliveries out ---------------------------------------------------------------------------

    def pump(self, budget_bytes: int) -> tuple[int, list[PumpEvent]]:
        """Write transfers, see `Outbound.pump`. Call again until no event is returned."""
        written, events, failed = self.outbound.pump(budget_bytes)
        if failed is not None:
            link, fault = failed
            unsent = self.links.detach(link, fault)
            events.append(LinkDetached(link, True, None, fault, unsent))
        return written, events

    # --- helpers ----------------------------------------------------------------------------------

    def _move(self, step: SessionInput) -> None:
        state = SESSION_TRANSITIONS.get((self.state, step))
        if state is None:
            raise AmqpConnectionError(
                Condition.ILLEGAL_STATE, f"{step.name.lower()} in session state {self.state.name.lower()}"
            )
        self.state = state
