"""One AMQP 1.0 session end: part 2, sections 2.5 and 2.6. The conductor of the engine.

Takes frame bodies in (`receive`), reports `events`, takes orders (`accept_link`, `queue_deliveries`,
`settle_received` ...) and gives frames out (`take_output`). It owns the session's windows
(`windows.py`), the links and their handles (`link.py`, `credit.py`), and both maps of unsettled
deliveries. It knows no broker and no queue, and either role may be played.

The peer's faults are translated here: an `AmqpLinkError` raised while a link's frame is handled
detaches that link, an `AmqpSessionError` ends the session, and an `AmqpConnectionError` leaves
`receive` for the owner, which must close the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from amqp10broker.amqp10.delivery import DeliveryBatch, Parts
from amqp10broker.amqp10.disposition import DispositionRun, Outcome, Settlements
from amqp10broker.amqp10.errors import (
    AmqpConnectionError,
    AmqpError,
    AmqpLinkError,
    AmqpSessionError,
    Condition,
)
from amqp10broker.amqp10.events import (
    DeliveriesSent,
    DeliveriesSettled,
    DeliveriesUpdated,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    LinkFlowed,
    MarkerReached,
    PumpEvent,
    SessionEnded,
    SessionEvent,
)
from amqp10broker.amqp10.faults import to_error
from amqp10broker.amqp10.link import (
    LINK_TRANSITIONS,
    LinkInput,
    LinkState,
    ReceiverLink,
    SenderLink,
)
from amqp10broker.amqp10.output import Output
from amqp10broker.amqp10.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    ReceiverSettleMode,
    SenderSettleMode,
)
from amqp10broker.amqp10.receiving import Inbound, head_of_run
from amqp10broker.amqp10.sending import Outbound, withdraw
from amqp10broker.amqp10.serial import MASK, diff, limit_left
from amqp10broker.amqp10.session_state import SESSION_TRANSITIONS, SessionInput, SessionState
from amqp10broker.amqp10.transfer import TransferFrame, TransferRun, TransferTemplate
from amqp10broker.amqp10.types import Symbol
from amqp10broker.amqp10.windows import OUTGOING_WINDOW, IncomingWindow, OutgoingWindow

ROLE_SENDER: Final = False
ROLE_RECEIVER: Final = True


class Session:
    """One session end.

    Attributes:
        channel: our channel number, on which `take_output` frames go.
        state: see `SessionState`.
        incoming: the window for transfers from the peer.
        outgoing: the window for transfers to the peer.
        handle_max: largest handle the peer may use.
        unsettled_in: delivery-id -> link, deliveries received and not settled by us.
        unsettled_out: delivery-id -> (link, key), deliveries sent and not settled by the peer.
        remote_begin: the peer's begin, None before it.
    """

    def __init__(
        self,
        channel: int,
        *,
        incoming_window: int,
        handle_max: int,
        frame_size_max: int,
        window_closed: bool = False,
    ) -> None:
        """Make an unmapped session end.

        Args:
            channel: our channel.
            incoming_window: transfer frames, 1 .. 2**32 - 1.
            handle_max: largest handle we accept, 0 .. 2**32 - 1.
            frame_size_max: bytes, the largest frame that the *peer* takes.
            window_closed: begin with the incoming-window held closed (an alarm is on).
        """
        self.channel = channel
        self.state = SessionState.UNMAPPED
        self.incoming = IncomingWindow(incoming_window, closed=window_closed)
        self.outgoing = OutgoingWindow()
        self.handle_max = handle_max
        self.remote_begin: Begin | None = None
        self._remote_channel = channel
        self._links_by_remote: dict[int, SenderLink | ReceiverLink] = {}
        self._links: dict[int, SenderLink | ReceiverLink] = {}
        self._settlements_in = Settlements(channel, ROLE_RECEIVER)
        self._settlements_out = Settlements(channel, ROLE_SENDER)
        self._round: deque[SenderLink] = deque()
        self._output = Output(channel)
        self._write = self._output.write
        self._in = Inbound(self.incoming)
        self._out = Outbound(self.outgoing, self._output, channel, frame_size_max)
        self.unsettled_in = self._in.unsettled
        self.unsettled_out = self._out.unsettled

    # --- what the owner asks ----------------------------------------------------------------------

    @property
    def links(self) -> Iterable[SenderLink | ReceiverLink]:
        """All links with a handle of ours."""
        return self._links.values()

    @property
    def ended(self) -> bool:
        """Whether nothing but the peer's end, if that, is still expected."""
        return self.state not in (SessionState.MAPPED, SessionState.BEGIN_SENT, SessionState.BEGIN_RECEIVED)

    @property
    def sending_waits_for_window(self) -> bool:
        """Whether deliveries wait because the peer's incoming-window is used up."""
        return bool(self._round) and self.outgoing.remote_incoming_window == 0

    @property
    def has_pending(self) -> bool:
        """Whether any link has deliveries or markers that are not written."""
        return bool(self._round)

    def take_output(self) -> list[bytes | memoryview]:
        """The bytes to write now, in pieces to be joined: dispositions first, then the rest.

        Dispositions are collected until this call, so call it once per batch.
        """
        self._flush()
        return self._output.take()

    # --- begin and end ----------------------------------------------------------------------------

    def begin(self, *, properties: Any = None, window_size: int | None = None) -> None:
        """Send begin: as the answer to the peer's, or first.

        Args:
            properties: of the begin.
            window_size: incoming-window to use instead of the one given at construction.
        """
        answer = self.state is SessionState.BEGIN_RECEIVED
        self._move(SessionInput.SEND_BEGIN)
        if window_size is not None:
            self.incoming.resize(window_size)
        self._write(
            Begin(
                remote_channel=self._remote_channel if answer else None,
                next_outgoing_id=self.outgoing.next_outgoing_id,
                incoming_window=self.incoming.advertised,
                outgoing_window=OUTGOING_WINDOW,
                handle_max=self.handle_max,
                properties=properties,
            )
        )
        self.incoming.flow_due = False

    def receive_begin(self, channel: int, begin: Begin) -> None:
        """Take the peer's begin over, whichever came first.

        Args:
            channel: the peer's channel.
            begin: its performative.
        """
        self._move(SessionInput.RECEIVE_BEGIN)
        self._remote_channel = channel
        self.remote_begin = begin
        self.incoming.next_incoming_id = begin.next_outgoing_id
        self.outgoing.remote_incoming_window = begin.incoming_window
        self.outgoing.remote_outgoing_window = begin.outgoing_window
        self.handle_max = min(self.handle_max, begin.handle_max)

    def end(self, error: AmqpError | None = None) -> None:
        """Send end; all links are gone with it."""
        self._flush()
        if self.state is SessionState.MAPPED and error is not None:
            self._move(SessionInput.SEND_END_ERROR)
        else:
            self._move(SessionInput.SEND_END)
        self._write(End(error=to_error(error)))
        self._forget_links()

    # --- frames in --------------------------------------------------------------------------------

    def receive(self, items: Sequence[object]) -> list[SessionEvent]:
        """Handle frame bodies of this session in order.

        Raises:
            AmqpConnectionError: the peer broke a rule whose scope is the connection.
        """
        events: list[SessionEvent] = []
        for item in items:
            handle = _HANDLERS.get(type(item))
            if self.state in (SessionState.DISCARDING, SessionState.END_SENT) and type(item) is not End:
                continue
            if handle is None or self.state is SessionState.UNMAPPED:
                raise AmqpConnectionError(
                    Condition.ILLEGAL_STATE,
                    f"{type(item).__name__.lower()} is not permitted on channel {self.channel} now",
                )
            try:
                handle(self, item, events)
            except AmqpSessionError as fault:
                self.end(fault)
                events.append(SessionEnded(to_error(fault), fault))
        return events

    def _on_run(self, run: TransferRun, events: list[SessionEvent]) -> None:
        count = len(run.delivery_ids)
        violation = self._in.count(count)
        if violation is not None:
            count = violation
            run = head_of_run(run, count)
        link = self._receiver(run.handle)
        if link is not None and count:
            try:
                self._in.take_run(link, run, events)
            except AmqpLinkError as fault:
                self._fail_link(link, fault, events)
        if violation is not None:
            raise self.incoming.violation()

    def _on_transfer(self, frame: TransferFrame, events: list[SessionEvent]) -> None:
        violation = self._in.count(1)
        if violation is not None:
            raise self.incoming.violation()
        link = self._receiver(frame.performative.handle)
        if link is None:
            return
        try:
            self._in.take_transfer(link, frame.performative, frame.payload, events)
        except AmqpLinkError as fault:
            self._fail_link(link, fault, events)

    def _receiver(self, handle: int) -> ReceiverLink | None:
        """The receiver link for a transfer; None when its frames are to be discarded."""
        link = self._links_by_remote.get(handle)
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
        link = self._links_by_remote.get(flow.handle)
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
            if flow.delivery_count is not None:
                self._follow_sender(link, flow.delivery_count)
            if flow.echo:
                self.send_flow(link)
        events.append(LinkFlowed(link, flow))

    def _follow_sender(self, link: ReceiverLink, delivery_count: int) -> None:
        """A sender that drained has advanced its delivery-count: the credit is used up to there."""
        credit = link.credit
        if diff(delivery_count, credit.delivery_count) > 0:
            credit.link_credit = limit_left(credit.delivery_count, credit.link_credit, delivery_count)
            credit.delivery_count = delivery_count
            self._in.top_up(link)

    def _on_disposition(self, performative: Disposition, events: list[SessionEvent]) -> None:
        last = performative.first if performative.last is None else performative.last
        self._update(
            performative.role, performative.settled, performative.state, [(performative.first, last)], events
        )

    def _on_disposition_run(self, run: DispositionRun, events: list[SessionEvent]) -> None:
        self._update(run.role, run.settled, run.state, run.spans, events)

    def _update(
        self,
        role: bool,
        settled: bool,
        state: Any,
        spans: list[tuple[int, int]],
        events: list[SessionEvent],
    ) -> None:
        unsettled: dict[int, Any] = self.unsettled_out if role == ROLE_RECEIVER else self.unsettled_in
        if not unsettled:
            return
        by_link: dict[Any, list[int]] = {}
        keys_by_link: dict[Any, list[int]] = {}
        for first, last in spans:
            for delivery_id in _known(unsettled, first, last):
                entry = unsettled.pop(delivery_id, None) if settled else unsettled.get(delivery_id)
                if entry is None:
                    continue
                if role == ROLE_RECEIVER:
                    link, key = entry
                    ids = by_link.get(link)
                    if ids is None:
                        ids = by_link[link] = []
                        keys_by_link[link] = []
                    ids.append(delivery_id)
                    keys_by_link[link].append(key)
                else:
                    by_link.setdefault(entry, []).append(delivery_id)
        for link, ids in by_link.items():
            if role == ROLE_RECEIVER:
                events.append(DeliveriesUpdated(link, keys_by_link[link], ids, state, settled))
            else:
                events.append(DeliveriesSettled(link, ids, state, settled))

    def _on_begin(self, performative: Begin, events: list[SessionEvent]) -> None:
        raise AmqpSessionError(
            Condition.ILLEGAL_STATE,
            f"Unexpected frame: begin on channel {self._remote_channel}, which is in use",
        )

    def _on_end(self, performative: End, events: list[SessionEvent]) -> None:
        answered = self.state is SessionState.MAPPED
        self._move(SessionInput.RECEIVE_END)
        if answered:
            events.append(SessionEnded(performative.error, None))

    # --- links ------------------------------------------------------------------------------------

    def attach(
        self,
        name: str,
        role: bool,
        *,
        source: Any,
        target: Any,
        snd_settle_mode: int = SenderSettleMode.MIXED,
        rcv_settle_mode: int = ReceiverSettleMode.FIRST,
        credit_limit: int = 0,
        max_message_size: int = 0,
        properties: Any = None,
    ) -> SenderLink | ReceiverLink:
        """Attach a link of our own wish; `LinkAttached` or `LinkDetached` follows.

        Args:
            name: unique for the pair of containers and the direction.
            role: ours, `ROLE_SENDER` or `ROLE_RECEIVER`.
            source: source terminus.
            target: target terminus.
            snd_settle_mode: wished.
            rcv_settle_mode: wished.
            credit_limit: receiver only; credit is kept topped up to it, 0 leaves it to `grant`.
            max_message_size: receiver only; bytes, 0 for no limit.
            properties: of the attach.
        """
        handle = next(number for number in range(self.handle_max + 2) if number not in self._links)
        link: SenderLink | ReceiverLink
        link = SenderLink(name, handle) if role == ROLE_SENDER else ReceiverLink(name, handle)
        link.move(LinkInput.SEND_ATTACH)
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        if type(link) is ReceiverLink:
            link.credit.limit = credit_limit
            link.max_message_size = max_message_size
        self._links[handle] = link
        self._write(
            Attach(
                name=name,
                handle=handle,
                role=role,
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=link.credit.delivery_count if role == ROLE_SENDER else None,
                max_message_size=max_message_size or None,
                properties=properties,
            )
        )
        return link

    def _on_attach(self, attach: Attach, events: list[SessionEvent]) -> None:
        if attach.handle > self.handle_max:
            raise AmqpConnectionError(
                Condition.FRAMING_ERROR,
                f"link handle value ({attach.handle}) exceeds maximum link handle value ({self.handle_max})",
            )
        if attach.handle in self._links_by_remote:
            raise AmqpSessionError(
                Condition.HANDLE_IN_USE, f"handle {attach.handle} is already associated with a link"
            )
        for link in self._links.values():
            if (
                link.remote_handle is None
                and link.name == attach.name
                and (type(link) is SenderLink) == attach.role
            ):
                self._complete_attach(link, attach, events)
                return
        self._new_link(attach, events)

    def _new_link(self, attach: Attach, events: list[SessionEvent]) -> None:
        # The peer's own number is free on our side as long as only the peer attaches; using it makes
        # traces readable.
        handle = attach.handle
        while handle in self._links:
            handle += 1
        link: SenderLink | ReceiverLink
        link = SenderLink(attach.name, handle) if attach.role else ReceiverLink(attach.name, handle)
        link.move(LinkInput.RECEIVE_ATTACH)
        self._links[handle] = link
        self._take_over(link, attach)
        if not attach.role and attach.initial_delivery_count is None:
            self.refuse_link(
                link,
                AmqpLinkError(
                    Condition.INVALID_FIELD,
                    "initial-delivery-count must be set when the role of attach is sender",
                ),
            )
            return
        events.append(LinkAttaching(link, attach))

    def _complete_attach(
        self, link: SenderLink | ReceiverLink, attach: Attach, events: list[SessionEvent]
    ) -> None:
        link.move(LinkInput.RECEIVE_ATTACH)
        self._take_over(link, attach)
        if link.state is LinkState.DETACH_SENT:
            return
        link.snd_settle_mode = attach.snd_settle_mode
        link.rcv_settle_mode = attach.rcv_settle_mode
        self._start(link)
        events.append(LinkAttached(link, attach))

    def _take_over(self, link: SenderLink | ReceiverLink, attach: Attach) -> None:
        link.remote_handle = attach.handle
        link.remote_attach = attach
        link.peer_max_message_size = attach.max_message_size or 0
        self._links_by_remote[attach.handle] = link
        if type(link) is ReceiverLink:
            link.credit.delivery_count = attach.initial_delivery_count or 0
        if attach.properties is not None:
            link.peer_properties = None

    def _start(self, link: SenderLink | ReceiverLink) -> None:
        if type(link) is SenderLink:
            link.settled = link.snd_settle_mode == SenderSettleMode.SETTLED
            link.template = TransferTemplate(self.channel, link.handle, settled=link.settled)
        else:
            assert type(link) is ReceiverLink
            self._in.top_up(link)

    def accept_link(
        self,
        link: SenderLink | ReceiverLink,
        *,
        source: Any,
        target: Any,
        snd_settle_mode: int,
        rcv_settle_mode: int,
        credit_limit: int = 0,
        max_message_size: int = 0,
        offered_capabilities: tuple[Symbol, ...] | None = None,
        properties: Any = None,
    ) -> None:
        """Answer the peer's attach; the first credit of a receiver link follows at once.

        Args:
            link: from `LinkAttaching`.
            source: terminus as it really is.
            target: terminus as it really is.
            snd_settle_mode: as it will be.
            rcv_settle_mode: as it will be.
            credit_limit: receiver links: credit is kept topped up to it, 0 leaves it to `grant`.
            max_message_size: bytes, told to the peer; 0 for no limit.
            offered_capabilities: of our end.
            properties: of our end.
        """
        link.move(LinkInput.SEND_ATTACH)
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        initial_delivery_count = None
        asked = link.remote_attach
        assert asked is not None
        resuming = bool(asked.unsettled) or asked.incomplete_unsettled
        if type(link) is ReceiverLink:
            link.max_message_size = max_message_size
            link.credit.limit = credit_limit
        else:
            initial_delivery_count = link.credit.delivery_count
        self._write(
            Attach(
                name=link.name,
                handle=link.handle,
                role=type(link) is ReceiverLink,
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                source=source,
                target=target,
                # We keep nothing across a detach: of a peer's unsettled deliveries none is known here
                # (2.6.13), which an empty map says and null would not.
                unsettled={} if resuming else None,
                initial_delivery_count=initial_delivery_count,
                max_message_size=max_message_size or None,
                offered_capabilities=offered_capabilities,
                properties=properties,
            )
        )
        self._start(link)

    def refuse_link(self, link: SenderLink | ReceiverLink, error: AmqpError) -> None:
        """Answer the peer's attach with an attach whose terminus is null, then detach (2.6.3)."""
        link.move(LinkInput.SEND_ATTACH)
        attach = link.remote_attach
        assert attach is not None
        sender = type(link) is SenderLink
        self._write(
            Attach(
                name=link.name,
                handle=link.handle,
                role=not sender,
                snd_settle_mode=attach.snd_settle_mode,
                rcv_settle_mode=attach.rcv_settle_mode,
                # "the local terminus is null": source where we send, target where we receive
                source=None if sender else attach.source,
                target=attach.target if sender else None,
                initial_delivery_count=link.credit.delivery_count if sender else None,
            )
        )
        self.detach(link, error)

    def detach(
        self, link: SenderLink | ReceiverLink, error: AmqpError | None = None, *, closed: bool = True
    ) -> list[tuple[int, Parts]]:
        """Send detach: of our own accord, or as the answer to the peer's.

        Returns:
            Key and message of each delivery that was handed over and not begun.
        """
        self._flush_settlements()
        link.move(LinkInput.SEND_DETACH)
        self._write(Detach(handle=link.handle, closed=closed, error=to_error(error)))
        unsent = self.drop(link)
        if link.state is LinkState.DETACHED:
            self._forget(link)
        return unsent

    def _on_detach(self, detach: Detach, events: list[SessionEvent]) -> None:
        link = self._links_by_remote.get(detach.handle)
        if link is None:
            # A peer that detaches twice does no harm, and RabbitMQ lets it pass.
            return
        if (link.state, LinkInput.RECEIVE_DETACH) not in LINK_TRANSITIONS:
            raise AmqpSessionError(
                Condition.UNATTACHED_HANDLE, f"detach for handle {detach.handle} in state {link.state.name}"
            )
        link.move(LinkInput.RECEIVE_DETACH)
        if link.state is LinkState.DETACHED:
            self._forget(link)
            return
        events.append(LinkDetached(link, detach.closed, detach.error, None))

    def _fail_link(
        self, link: SenderLink | ReceiverLink, fault: AmqpLinkError, events: list[SessionEvent]
    ) -> None:
        unsent = self.detach(link, fault)
        events.append(LinkDetached(link, True, None, fault, unsent))

    def _forget(self, link: SenderLink | ReceiverLink) -> None:
        self._links.pop(link.handle, None)
        if link.remote_handle is not None:
            self._links_by_remote.pop(link.remote_handle, None)

    def drop(self, link: SenderLink | ReceiverLink) -> list[tuple[int, Parts]]:
        """Take a link out of sending and settling, without a frame; its deliveries are no longer known.

        Returns:
            Key and message of each delivery that was handed over and not begun, and of one that was
            begun settled and not finished: its receiver discards it, and no outcome will come.
        """
        if type(link) is ReceiverLink:
            self._in.drop(link)
            return []
        assert type(link) is SenderLink
        if link.queued:
            self._round.remove(link)
            link.queued = False
        return self._out.drop(link)

    def _forget_links(self) -> None:
        for link in list(self._links.values()):
            link.state = LinkState.DETACHED
        self._links.clear()
        self._links_by_remote.clear()

    # --- flow -------------------------------------------------------------------------------------

    def send_session_flow(self) -> None:
        """Tell the peer the session's windows, no link."""
        self._write(self._flow())
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
        """Tell the peer the link's state as it is now, with the session's.

        Args:
            link: an attached link.
            available: sender links: deliveries that could be sent if there were credit.
            drain: sender links repeat the receiver's last value; None takes it from the link.
            echo: ask the peer for its state.
            properties: link state properties.
        """
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
        self._write(flow)
        self.incoming.flow_due = False

    def drained(self, link: SenderLink, *, available: int, properties: Any = None) -> None:
        """End a drain: forfeit what credit is left and tell the peer in one flow."""
        link.credit.forfeit()
        self.send_flow(link, available=available, drain=True, properties=properties)

    def grant(self, link: ReceiverLink, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Set a receiver link's credit by hand and tell the peer."""
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

    def finish_received(self, link: ReceiverLink, deliveries: int) -> None:
        """Count deliveries as finished with, which may grant new credit."""
        self._in.finish(link, deliveries)

    def top_up(self, link: ReceiverLink) -> None:
        """Grant if the link's rule allows it now, as after a change of its limit."""
        self._in.top_up(link)

    # --- settlement -------------------------------------------------------------------------------

    def settle_received(
        self, delivery_ids: Sequence[int], state: Outcome | None, *, settled: bool = True
    ) -> None:
        """Tell the peer the outcome of deliveries that we received."""
        if settled:
            pop = self.unsettled_in.pop
            for delivery_id in delivery_ids:
                pop(delivery_id, None)
        self._settlements_in.add(delivery_ids, state, settled=settled)

    def settle_sent(self, delivery_ids: Sequence[int], state: Outcome | None) -> None:
        """Settle deliveries that we sent, after the peer told their state without settling."""
        pop = self.unsettled_out.pop
        for delivery_id in delivery_ids:
            pop(delivery_id, None)
        self._settlements_out.add(delivery_ids, state, settled=True)

    def _flush_settlements(self) -> None:
        if self._settlements_in:
            self._output.pieces.extend(self._settlements_in.take())
        if self._settlements_out:
            self._output.pieces.extend(self._settlements_out.take())

    def _flush(self) -> None:
        """Write what was collected: outcomes, then grants, then the session's own window."""
        self._flush_settlements()
        if self.state is not SessionState.MAPPED:
            return
        for link in self._in.grants:
            if link.credit.granted is None or not link.attached:
                continue
            delivery_count, link_credit = link.credit.granted
            flow = self._flow()
            flow.handle = link.handle
            flow.delivery_count = delivery_count
            flow.link_credit = link_credit
            link.credit.granted = None
            self._write(flow)
            self.incoming.flow_due = False
        self._in.grants.clear()
        if self.incoming.flow_due:
            self.send_session_flow()

    # --- deliveries out ---------------------------------------------------------------------------

    def queue_deliveries(self, link: SenderLink, keys: Sequence[int], messages: Sequence[Parts]) -> None:
        """Hand deliveries over; `pump` sends them as credit, window and budget allow."""
        link.pending.append(DeliveryBatch(keys, messages))
        self._enqueue(link)

    def queue_marker(self, link: SenderLink, marker: object) -> None:
        """Ask for a `MarkerReached` once everything handed over before has been written."""
        link.pending.append(marker)
        self._enqueue(link)

    def withdraw(self, link: SenderLink, keep: int) -> list[tuple[int, Parts]]:
        """Take back all but the first `keep` deliveries that have not begun."""
        return withdraw(link, keep)

    def _enqueue(self, link: SenderLink) -> None:
        if not link.queued:
            link.queued = True
            self._round.append(link)

    def pump(self, budget_bytes: int) -> tuple[int, list[PumpEvent]]:
        """Write transfers of the links in turn, as far as windows and budget allow.

        Stops at a marker, so that what its owner writes then stands in its right place: call again
        until no event comes back.

        Args:
            budget_bytes: bytes of transfers to write; exceeded by less than one frame.

        Returns:
            Bytes of transfers written, and what the owner needs to know.
        """
        written = 0
        events: list[PumpEvent] = []
        turns = self._round
        blocked = 0
        while turns and blocked < len(turns):
            link = turns[0]
            try:
                spent, sent, marker = self._out.take_turn(link, budget_bytes - written)
            except AmqpLinkError as fault:
                unsent = self.detach(link, fault)
                events.append(LinkDetached(link, True, None, fault, unsent))
                return written, events
            written += spent
            if sent:
                events.append(DeliveriesSent(link, sent))
            if not link.pending and link.partial is None:
                turns.popleft()
                link.queued = False
            else:
                turns.rotate(-1)
                blocked = 0 if spent else blocked + 1
            if marker is not None:
                events.append(MarkerReached(link, marker))
                return written, events
        return written, events

    # --- helpers ----------------------------------------------------------------------------------

    def _move(self, step: SessionInput) -> None:
        state = SESSION_TRANSITIONS.get((self.state, step))
        if state is None:
            raise AmqpConnectionError(
                Condition.ILLEGAL_STATE, f"{step.name.lower()} in session state {self.state.name.lower()}"
            )
        self.state = state


_HANDLERS: Final[dict[type, Callable[[Session, Any, list[SessionEvent]], None]]] = {
    TransferRun: Session._on_run,
    TransferFrame: Session._on_transfer,
    Flow: Session._on_flow,
    DispositionRun: Session._on_disposition_run,
    Disposition: Session._on_disposition,
    Attach: Session._on_attach,
    Detach: Session._on_detach,
    Begin: Session._on_begin,
    End: Session._on_end,
}


def _known(unsettled: dict[int, Any], first: int, last: int) -> Iterable[int]:
    """Ids of `first` .. `last` worth looking up, ascending; never more than are in the map."""
    span = diff(last, first)
    if span < 0:
        return ()
    if span < len(unsettled):
        if first <= last:
            return range(first, last + 1)
        return [(first + offset) & MASK for offset in range(span + 1)]
    inside = [number for number in unsettled if 0 <= diff(number, first) <= span]
    inside.sort(key=lambda number: (number - first) & MASK)
    return inside
