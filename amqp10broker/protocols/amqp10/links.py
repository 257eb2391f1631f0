"""The links of one session: part 2, sections 2.6.1 to 2.6.6. Handles, attach, refusal, detach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from amqp10broker.protocols.amqp10.delivery import Parts
from amqp10broker.protocols.amqp10.errors import (
    AmqpConnectionError,
    AmqpError,
    AmqpLinkError,
    AmqpSessionError,
    Condition,
)
from amqp10broker.protocols.amqp10.events import LinkAttached, LinkAttaching, LinkDetached, SessionEvent
from amqp10broker.protocols.amqp10.faults import to_error
from amqp10broker.protocols.amqp10.frames import FRAME_HEADER_BYTES
from amqp10broker.protocols.amqp10.link import (
    LINK_TRANSITIONS,
    LinkInput,
    LinkState,
    ReceiverLink,
    SenderLink,
)
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Detach,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
)
from amqp10broker.protocols.amqp10.receiving import Inbound
from amqp10broker.protocols.amqp10.resumption import State, unsettled_map
from amqp10broker.protocols.amqp10.sending import Outbound
from amqp10broker.protocols.amqp10.settling import Output, Settling
from amqp10broker.protocols.amqp10.transfer import TransferHead
from amqp10broker.protocols.amqp10.types import Symbol


class Links:
    """The handle tables of a session, and the transitions of its links."""

    def __init__(
        self,
        channel: int,
        handle_max: int,
        output: Output,
        inbound: Inbound,
        outbound: Outbound,
        settling: Settling,
        on_fault: Callable[[SenderLink | ReceiverLink, AmqpError, bool], None],
    ) -> None:
        self._channel = channel
        self._output = output
        self._in = inbound
        self._out = outbound
        self._settling = settling
        self._on_fault = on_fault
        self.handle_max = handle_max
        self.by_handle: dict[int, SenderLink | ReceiverLink] = {}
        self.by_remote: dict[int, SenderLink | ReceiverLink] = {}

    def __iter__(self) -> Iterator[SenderLink | ReceiverLink]:
        return iter(self.by_handle.values())

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
        desired_capabilities: tuple[Symbol, ...] | None = None,
        properties: Any = None,
    ) -> SenderLink | ReceiverLink:
        """Attach a link on our initiative. `credit_limit`: credit is topped up to it, 0 leaves it to
        `grant`.
        """
        handle = next(number for number in range(self.handle_max + 2) if number not in self.by_handle)
        link: SenderLink | ReceiverLink
        link = SenderLink(name, handle) if role == Role.SENDER else ReceiverLink(name, handle)
        link.move(LinkInput.SEND_ATTACH)
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        if type(link) is ReceiverLink:
            link.credit.limit = credit_limit
            link.max_message_size = max_message_size
        self.by_handle[handle] = link
        self._output.write(
            Attach(
                name=name,
                handle=handle,
                role=role,
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=link.credit.delivery_count if role == Role.SENDER else None,
                max_message_size=max_message_size or None,
                desired_capabilities=desired_capabilities,
                properties=properties,
            )
        )
        return link

    def on_attach(self, attach: Attach, events: list[SessionEvent]) -> None:
        """Handle the peer's attach, which requests a link or answers ours. Raises `AmqpConnectionError`
        (the handle is larger than we allowed) and `AmqpSessionError` (it is in use, by a link that we did not
        detach).
        """
        if attach.handle > self.handle_max:
            raise AmqpConnectionError(
                Condition.FRAMING_ERROR,
                f"link handle value ({attach.handle}) exceeds maximum link handle value ({self.handle_max})",
            )
        held = self.by_remote.get(attach.handle)
        if held is not None:
            if held.state is not LinkState.DETACH_SENT:
                raise AmqpSessionError(
                    Condition.HANDLE_IN_USE, f"handle {attach.handle} is already associated with a link"
                )
            # We refused or detached that link, and the peer owes us its detach. RabbitMQ forgets such a link
            # at once, so there are clients which do not answer and use the number again.
            held.move(LinkInput.RECEIVE_DETACH)
            self._forget(held)
        for link in self.by_handle.values():
            if (
                link.remote_handle is None
                and link.name == attach.name
                and (type(link) is SenderLink) == attach.role
            ):
                self._complete_attach(link, attach, events)
                return
        self._new_link(attach, events)

    def _new_link(self, attach: Attach, events: list[SessionEvent]) -> None:
        # The peer's own number is free on our side as long as only the peer attaches; using it makes traces
        # readable.
        handle = attach.handle
        while handle in self.by_handle:
            handle += 1
        link: SenderLink | ReceiverLink
        link = SenderLink(attach.name, handle) if attach.role else ReceiverLink(attach.name, handle)
        link.move(LinkInput.RECEIVE_ATTACH)
        self.by_handle[handle] = link
        self._take_over(link, attach)
        fault = _bad_attach(attach)
        if fault is not None:
            self.refuse(link, fault)
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
        link.address = getattr(attach.source if type(link) is SenderLink else attach.target, "address", None)
        self.by_remote[attach.handle] = link
        if type(link) is ReceiverLink:
            link.credit.delivery_count = attach.initial_delivery_count or 0
        if attach.properties is not None:
            link.peer_properties = None

    def _start(self, link: SenderLink | ReceiverLink) -> None:
        if type(link) is SenderLink:
            link.settled = link.snd_settle_mode == SenderSettleMode.SETTLED
            link.head = TransferHead(self._channel, link.handle, settled=link.settled)
        else:
            assert type(link) is ReceiverLink
            self._in.top_up(link)

    def accept(
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
        unsettled: Mapping[bytes, State] | None = None,
    ) -> bool:
        """Answer the peer's attach; the first credit of a receiver link follows at once.

        Args:
            credit_limit: receiver links: credit is topped up to it, 0 leaves it to `grant`.
            unsettled: our map; if it does not fit a frame of the peer only its first entries are sent. None:
                no earlier state exists here, which is sent as an empty map if the peer has sent a map.
        """
        link.move(LinkInput.SEND_ATTACH)
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        initial_delivery_count = None
        asked = link.remote_attach
        assert asked is not None
        resuming = bool(asked.unsettled) or asked.incomplete_unsettled
        # It is answered, and must not use memory as long as the link lives.
        asked.unsettled = None
        if type(link) is ReceiverLink:
            link.address = getattr(target, "address", None)
            link.max_message_size = max_message_size
            link.credit.limit = credit_limit
        else:
            link.address = getattr(source, "address", None)
            initial_delivery_count = link.credit.delivery_count
        answer = Attach(
            name=link.name,
            handle=link.handle,
            role=type(link) is ReceiverLink,
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            source=source,
            target=target,
            unsettled={} if resuming and unsettled is None else None,
            initial_delivery_count=initial_delivery_count,
            max_message_size=max_message_size or None,
            offered_capabilities=offered_capabilities,
            properties=properties,
        )
        if unsettled is not None:
            answer.unsettled = dict(unsettled)
            self._cut(answer)
        self._output.write(answer)
        self._start(link)
        return not answer.incomplete_unsettled

    def _cut(self, answer: Attach) -> None:
        # Sends fewer entries of an unsettled map if the whole does not fit a frame: 2.6.13.
        entries = list((answer.unsettled or {}).items())
        count = len(entries)
        while count and len(answer.encode()) > self._output.frame_size_max - FRAME_HEADER_BYTES:
            count //= 2
            answer.unsettled, answer.incomplete_unsettled = dict(entries[:count]), True

    def refuse(self, link: SenderLink | ReceiverLink, error: AmqpError) -> None:
        """Answer the peer's attach with an attach without a terminus, then detach (2.6.3)."""
        link.move(LinkInput.SEND_ATTACH)
        attach = link.remote_attach
        assert attach is not None
        attach.unsettled = None
        snd_mode, rcv_mode = attach.snd_settle_mode, attach.rcv_settle_mode
        sender = type(link) is SenderLink
        self._output.write(
            Attach(
                name=link.name,
                handle=link.handle,
                role=not sender,
                snd_settle_mode=snd_mode if snd_mode in _SND_MODES else SenderSettleMode.MIXED,
                rcv_settle_mode=rcv_mode if rcv_mode in _RCV_MODES else ReceiverSettleMode.FIRST,
                # "the local terminus is null": source where we send, target where we receive
                source=None if sender else attach.source,
                target=attach.target if sender else None,
                initial_delivery_count=link.credit.delivery_count if sender else None,
            )
        )
        self._detach(link, error, closed=True)
        self._on_fault(link, error, True)

    def detach(
        self, link: SenderLink | ReceiverLink, error: AmqpError | None = None, *, closed: bool = True
    ) -> list[tuple[int, Parts]]:
        """Send detach; return key and message of each delivery that was handed over and not begun."""
        unsent = self._detach(link, error, closed=closed)
        if error is not None:
            self._on_fault(link, error, False)
        return unsent

    def _detach(
        self, link: SenderLink | ReceiverLink, error: AmqpError | None, *, closed: bool
    ) -> list[tuple[int, Parts]]:
        self._settling.flush()
        link.move(LinkInput.SEND_DETACH)
        self._output.write(Detach(handle=link.handle, closed=closed, error=to_error(error)))
        unsent = self.drop(link)
        if link.state is LinkState.DETACHED:
            self._forget(link)
        return unsent

    def on_detach(self, detach: Detach, events: list[SessionEvent]) -> None:
        link = self.by_remote.get(detach.handle)
        if link is None:
            # A second detach of the peer is harmless, and RabbitMQ accepts it.
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

    def _forget(self, link: SenderLink | ReceiverLink) -> None:
        self.by_handle.pop(link.handle, None)
        if link.remote_handle is not None:
            self.by_remote.pop(link.remote_handle, None)

    def drop(self, link: SenderLink | ReceiverLink) -> list[tuple[int, Parts]]:
        """Remove a link and its deliveries without a frame. Returns those that were handed over and not
        begun, and one that was begun settled and not finished: its receiver discards it, and no outcome will
        come.
        """
        if type(link) is ReceiverLink:
            self._in.drop(link)
            return []
        assert type(link) is SenderLink
        return self._out.drop(link)

    def forget_all(self) -> None:
        for link in list(self.by_handle.values()):
            link.state = LinkState.DETACHED
            if type(link) is ReceiverLink:
                self._in.drop_partial(link)
        self.by_handle.clear()
        self.by_remote.clear()


_SND_MODES: Final = frozenset(SenderSettleMode)
_RCV_MODES: Final = frozenset(ReceiverSettleMode)


def _bad_attach(attach: Attach) -> AmqpLinkError | None:
    # Why an attach is invalid whatever it requests; None if it is valid.
    if not attach.role and attach.initial_delivery_count is None:
        return AmqpLinkError(
            Condition.INVALID_FIELD, "initial-delivery-count must be set when the role of attach is sender"
        )
    if attach.snd_settle_mode not in _SND_MODES:
        return AmqpLinkError(
            Condition.INVALID_FIELD, f"snd-settle-mode {attach.snd_settle_mode} is none of 0, 1, 2"
        )
    if attach.rcv_settle_mode not in _RCV_MODES:
        return AmqpLinkError(
            Condition.INVALID_FIELD, f"rcv-settle-mode {attach.rcv_settle_mode} is none of 0, 1"
        )
    if attach.unsettled:
        try:
            unsettled_map(attach)
        except AmqpLinkError as fault:
            return fault
    return None
