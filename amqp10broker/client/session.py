"""One session of a client connection, with its link ends. Without I/O; driven by `core.ClientCore`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, assert_never

from amqp10broker.client.checks import UINT_MAX, ULONG_MAX, check_integer, check_text, fields
from amqp10broker.client.ends import LinkEnd, ReceiverEnd, SenderEnd
from amqp10broker.client.errors import ClientError, SessionEndedError, said
from amqp10broker.protocols.amqp10.errors import AmqpError, Condition
from amqp10broker.protocols.amqp10.events import (
    DeliveriesReceived,
    DeliveriesSent,
    DeliveriesSettled,
    DeliveriesUpdated,
    DeliveryBegun,
    DeliveryResumed,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    LinkFlowed,
    MarkerReached,
    PumpEvent,
    SessionEnded,
    SessionEvent,
)
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import (
    Error,
    SenderSettleMode,
    Source,
    Target,
    TerminusExpiryPolicy,
)
from amqp10broker.protocols.amqp10.session import ROLE_RECEIVER, ROLE_SENDER, Session, SessionState
from amqp10broker.protocols.amqp10.types import Symbol

_TEMPORARY_QUEUE: Final = Symbol("temporary-queue")
_LINK_NAME_ADDRESS_CHARS: Final = 60


class ConnectionOwner(Protocol):
    @property
    def failure(self) -> ClientError | None:
        """Why the connection has ended, None while it has not."""

    def next_number(self) -> int:
        """Return a number that is unique in this connection."""


class ClientSession:
    """One session of a `ClientCore`, with its link ends."""

    def __init__(self, core: ConnectionOwner, engine: Session) -> None:
        self.engine = engine
        self._core = core
        self._failure: ClientError | None = None
        self._links_made = 0
        self._senders: dict[SenderLink, SenderEnd] = {}
        self._receivers: dict[ReceiverLink, ReceiverEnd] = {}
        engine.begin()

    @property
    def failure(self) -> ClientError | None:
        """Why the session cannot be used any more; None while it can, and after a local end."""
        return self._failure or self._core.failure

    @property
    def begun(self) -> bool:
        return self.engine.state is SessionState.MAPPED

    @property
    def ended(self) -> bool:
        """Whether nothing more can come, because the broker has ended the session or the connection."""
        return self.engine.state is SessionState.UNMAPPED or self.failure is not None

    def end(self) -> None:
        """End the session and its links; `ended` becomes true."""
        if self.engine.state is SessionState.MAPPED and self.failure is None:
            self.engine.end()

    def sender(
        self,
        address: str | None,
        *,
        settled: bool = False,
        properties: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> SenderEnd:
        """Attach a link for sending; `SenderEnd.attached` becomes true, or `failure` is set. `address`: the
        target; None: each message names its own in its property `to`. `name`: of the link; None makes one up.
        Raises `ValueError` if an argument fits no frame; nothing was sent.
        """
        check_text("address", address)
        check_text("name", name)
        link = self.engine.links.attach(
            self._link_name(address, name),
            ROLE_SENDER,
            source=Source(),
            target=Target(address=address),
            snd_settle_mode=SenderSettleMode.SETTLED if settled else SenderSettleMode.UNSETTLED,
            properties=fields("properties", properties),
        )
        assert type(link) is SenderLink
        self._senders[link] = end = SenderEnd(self, link, address)
        return end

    def receiver(
        self,
        address: str | None,
        *,
        credit_limit: int = 0,
        settled: bool = False,
        max_message_size_bytes: int = 0,
        filters: Mapping[str, Any] | None = None,
        desired_capabilities: Sequence[str] = (),
        properties: Mapping[str, Any] | None = None,
        name: str | None = None,
        end_type: type[ReceiverEnd] = ReceiverEnd,
    ) -> ReceiverEnd:
        """Attach a link for receiving; `ReceiverEnd.attached` becomes true, or `failure` is set.

        Args:
            address: the source; None: a queue created for this link and deleted with it, with its name in
                `ReceiverEnd.address`.
            credit_limit: level to which credit is topped up; 0: `ReceiverEnd.grant` grants by hand.
            max_message_size_bytes: larger ones end the link; 0 for no limit.
            name: of the link; None makes one up.

        Raises:
            ValueError: an argument fits no frame; nothing was sent.
        """
        check_text("address", address)
        check_text("name", name)
        check_integer("credit", credit_limit, 0, UINT_MAX)
        check_integer("max_message_size_bytes", max_message_size_bytes, 0, ULONG_MAX)
        if address is None:
            source = Source(
                dynamic=True,
                expiry_policy=TerminusExpiryPolicy.LINK_DETACH,
                capabilities=(_TEMPORARY_QUEUE,),
            )
        else:
            source = Source(address=address, filter=fields("filters", filters))
        link = self.engine.links.attach(
            self._link_name(address, name),
            ROLE_RECEIVER,
            source=source,
            target=Target(),
            snd_settle_mode=SenderSettleMode.SETTLED if settled else SenderSettleMode.UNSETTLED,
            credit_limit=credit_limit,
            max_message_size=max_message_size_bytes,
            desired_capabilities=tuple(map(Symbol, desired_capabilities)) or None,
            properties=fields("properties", properties),
        )
        assert type(link) is ReceiverLink
        self._receivers[link] = end = end_type(self, link, address, credit_limit)
        return end

    def forget(self, link: SenderLink | ReceiverLink) -> None:
        if isinstance(link, SenderLink):
            self._senders.pop(link, None)
        else:
            self._receivers.pop(link, None)

    def _end_of(self, link: SenderLink | ReceiverLink) -> LinkEnd | None:
        return self._senders.get(link) if isinstance(link, SenderLink) else self._receivers.get(link)

    def _link_name(self, address: str | None, name: str | None) -> str:
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self.engine.ended:
            raise SessionEndedError("this program has ended the session: begin another one")
        if name is not None:
            return name
        self._links_made += 1
        shown = (address or "-")[:_LINK_NAME_ADDRESS_CHARS]
        return f"{shown}#{self.engine.channel}.{self._links_made}.{self._core.next_number()}"

    # --- input and output, for the core ------------------------------------------------------------

    def receive(self, items: list[object]) -> None:
        """Process frame bodies of this session. Raises `AmqpConnectionError` if the broker broke a rule of
        the connection.
        """
        for event in self.engine.receive(items):
            self._on_event(event)

    def write(self, pieces: list[bytes | memoryview], budget_bytes: int) -> int:
        """Append pending output to `pieces`; return the bytes of transfers in it."""
        spent = 0
        events: list[PumpEvent] | None = None
        while events is None or events:
            written, events = self.engine.pump(budget_bytes - spent)
            spent += written
            for event in events:
                self._on_event(event)
        pieces.extend(self.engine.take_output())
        return spent

    def _on_event(self, event: SessionEvent | PumpEvent) -> None:
        match event:
            case DeliveriesReceived():
                if (receiver := self._receivers.get(event.link)) is not None:
                    receiver.on_received(event)
            case DeliveriesUpdated():
                if (sender := self._senders.get(event.link)) is not None:
                    sender.on_updated(event)
            case DeliveriesSent():
                if (sender := self._senders.get(event.link)) is not None:
                    sender.on_sent(event.deliveries)
            case LinkAttached():
                if (end := self._end_of(event.link)) is not None:
                    end.on_attached(event.attach)
            case LinkFlowed(link=ReceiverLink() as link):
                if (receiver := self._receivers.get(link)) is not None:
                    receiver.on_flowed(event.flow)
            case LinkDetached():
                if (end := self._end_of(event.link)) is not None:
                    end.on_detached(event)
                    self.forget(event.link)
            case LinkAttaching():
                # A broker must not attach links to a client.
                self.engine.links.refuse(
                    event.link,
                    AmqpError(Condition.NOT_ALLOWED, "this client takes no links that the peer attaches"),
                )
            case DeliveryBegun() | DeliveryResumed():
                raise AssertionError("no link of a client's resumes, or looks ahead")
            case SessionEnded():
                if event.fault is None:
                    self.engine.end()
                    self._failure = ended(SessionEndedError, "the broker ended the session", event.error)
                else:
                    what = "the session was ended for a fault of the broker"
                    self._failure = ended(SessionEndedError, what, event.error)
            case LinkFlowed() | DeliveriesSettled() | MarkerReached():
                pass  # the engine has processed flows and the peer's settling already
            case _:
                assert_never(event)


def ended(kind: type[ClientError], what: str, error: Error | None) -> ClientError:
    """Make the error for an end or close frame of the broker."""
    return kind(
        f"{what}{said(error)}",
        condition=None if error is None else str(error.condition),
        description="" if error is None else error.description or "",
    )
