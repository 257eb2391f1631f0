"""python-qpid-proton, driven step by step.

A thin layer over proton's events: every link end records what it was told, nothing is granted,
accepted or settled unless the test says so, and `ProtonClient.wait` turns the event loop until a
condition holds. Payloads are the raw bytes of the wire (`Link.recv`), so that a test can compare them.

Roles are those of the link end: `SendingEnd` publishes, `ReceivingEnd` consumes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from proton import Delivery, Endpoint, Event, Link, Message, Session, Terminus
from proton.reactor import Container, Handler

WAIT_S: Final = 60.0
_TURN_S: Final = 0.01
"""How long one turn of the event loop may wait: conditions outside of proton are looked at as often."""


class Disconnected(Exception):
    """The connection has gone while something was awaited."""


@dataclass
class Received:
    raw: bytes
    settled: bool
    delivery: Delivery

    @cached_property
    def message(self) -> Message:
        """Return the decoded message, kept because proton's binary values are views into its memory."""
        message = Message()
        message.decode(self.raw)
        return message


@dataclass
class Outcome:
    """What the broker said about a delivery of ours."""

    state: int
    settled: bool
    condition: str | None = None
    description: str | None = None


class LinkEnd(Handler):
    """What both kinds of link end have."""

    def __init__(self, client: ProtonClient, link: Link) -> None:
        super().__init__()
        self.client = client
        self.link = link
        self.closed = False
        self.flows = 0
        link.handler = self

    @property
    def attached(self) -> bool:
        return not self.link.state & Endpoint.REMOTE_UNINIT

    @property
    def condition(self) -> str | None:
        """Return the error with which the broker detached, or None."""
        found = self.link.remote_condition
        return found.name if found else None

    @property
    def description(self) -> str | None:
        found = self.link.remote_condition
        return found.description if found else None

    def wait_attached(self) -> None:
        """Wait for the broker's attach, and fail if it refuses the link."""
        self.client.wait(lambda: self.attached or self.closed, f"attach of {self.link.name}")
        assert not self.closed, f"{self.link.name} was refused: {self.condition} {self.description}"

    def wait_refused(self) -> str | None:
        self.client.wait(lambda: self.closed, f"detach of {self.link.name} by the broker")
        return self.condition

    def close(self) -> None:
        self.link.close()
        self.client.wait(lambda: self.link.state & Endpoint.REMOTE_CLOSED, f"detach of {self.link.name}")

    def detach(self) -> None:
        """Detach with closed=false and wait for the broker's detach."""
        self.link.detach()
        self.client.wait(lambda: self.closed, f"detach of {self.link.name}")

    def on_link_remote_close(self, event: Event) -> None:
        self.closed = True

    def on_link_remote_detach(self, event: Event) -> None:
        self.closed = True

    def on_link_flow(self, event: Event) -> None:
        self.flows += 1


class SendingEnd(LinkEnd):
    """A link on which we publish."""

    def __init__(self, client: ProtonClient, link: Link) -> None:
        super().__init__(client, link)
        self.outcomes: dict[str, Outcome] = {}
        self._tags = 0

    def transfer(self, content: bytes | Message, *, settled: bool = False) -> str:
        """Send one message and return its tag; waits for credit, not for the outcome."""
        self.client.wait(lambda: self.link.credit > 0 or self.closed, f"credit on {self.link.name}")
        assert not self.closed, f"{self.link.name} was detached: {self.condition} {self.description}"
        return self.transfer_now(content, settled=settled)

    def transfer_now(self, content: bytes | Message, *, settled: bool = False) -> str:
        """Hand one message to proton, which sends it when there is credit."""
        payload = content.encode() if isinstance(content, Message) else content
        self._tags += 1
        tag = str(self._tags)
        delivery = self.link.delivery(tag)
        self.link.stream(payload)
        if settled:
            delivery.settle()
        self.link.advance()
        return tag

    def outcome(self, tag: str) -> Outcome:
        self.client.wait(lambda: tag in self.outcomes or self.closed, f"outcome of delivery {tag}")
        return self.outcomes[tag]

    def send(self, *contents: bytes | Message | str) -> list[Outcome]:
        """Send messages one after the other, then wait for their outcomes."""
        tags = []
        for content in contents:
            tags.append(self.transfer(Message(body=content) if isinstance(content, str) else content))
        return [self.outcome(tag) for tag in tags]

    def on_delivery(self, event: Event) -> None:
        delivery = event.delivery
        if delivery.updated:
            condition = delivery.remote.condition
            self.outcomes[delivery.tag] = Outcome(
                delivery.remote_state,
                delivery.settled,
                condition.name if condition else None,
                condition.description if condition else None,
            )
            if delivery.settled:
                delivery.settle()


class ReceivingEnd(LinkEnd):
    """A link on which we consume."""

    def __init__(self, client: ProtonClient, link: Link) -> None:
        super().__init__(client, link)
        self.received: list[Received] = []
        self.taken = 0
        self.largest_unsettled = 0

    @property
    def bodies(self) -> list[Any]:
        return [each.message.body for each in self.received]

    def grant(self, credit: int) -> None:
        self.link.flow(credit)

    def drain(self, credit: int = 0) -> None:
        """Add to the credit, ask the broker to use or forfeit all of it, and wait for its answer."""
        before = self.flows
        self.link.drain(credit)
        self.client.wait(lambda: self.flows > before or self.closed, f"answer to drain on {self.link.name}")

    def stop(self) -> None:
        """Set the credit to 0 and wait until the broker has read it. Proton has no echo, but a drain without
        credit is answered at once (part 2, section 2.6.7). Deliveries that proton has buffered still
        count in its credit.
        """
        self.link.flow(self.link.queued - self.link.credit)
        self.drain()

    def take(self, count: int = 1) -> list[Received]:
        """Wait for the next deliveries. Credit must have been granted."""
        wanted = self.taken + count
        self.client.wait(
            lambda: len(self.received) >= wanted or self.closed,
            lambda: f"{count} deliveries on {self.link.name}, {len(self.received) - self.taken} came",
        )
        assert len(self.received) >= wanted, f"detached: {self.condition} {self.description}"
        taken = self.received[self.taken : wanted]
        self.taken = wanted
        return taken

    def settle(self, items: Sequence[Received] | Received, state: int | None = Delivery.ACCEPTED) -> None:
        """Settle deliveries with an outcome, and wait until the broker has read it."""
        for each in [items] if isinstance(items, Received) else items:
            if state is not None:
                each.delivery.update(state)
            each.delivery.settle()
        self.client.flush()

    def modify(self, item: Received, *, failed: bool, undeliverable: bool) -> None:
        local = item.delivery.local
        local.failed = failed
        local.undeliverable = undeliverable
        self.settle(item, Delivery.MODIFIED)

    def on_delivery(self, event: Event) -> None:
        delivery = event.delivery
        if delivery.readable and not delivery.partial:
            raw = self.link.recv(delivery.pending)
            self.received.append(Received(bytes(raw or b""), delivery.settled, delivery))
            self.link.advance()
            self.largest_unsettled = max(self.largest_unsettled, self.link.unsettled)


class SessionEnd(Handler):
    """A session, and what the broker did to it."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.opened = False
        self.closed = False
        self.condition: str | None = None
        self.description: str | None = None
        session.handler = self

    def on_session_remote_open(self, event: Event) -> None:
        self.opened = True

    def on_session_remote_close(self, event: Event) -> None:
        self.closed = True
        found = self.session.remote_condition
        if found:
            self.condition, self.description = found.name, found.description


class ProtonClient(Handler):
    """One connection of its own container."""

    def __init__(
        self,
        port: int,
        *,
        user: str | None = "guest",
        password: str | None = "guest",
        mechanisms: str = "PLAIN",
        scheme: str = "amqp",
        host: str = "127.0.0.1",
        wait: bool = True,
        **options: Any,
    ) -> None:
        """Connect, and by default wait until the connection is open."""
        super().__init__()
        self.remote_open = False
        self.remote_close: tuple[str | None, str | None] | None = None
        self.disconnected: str | None = None
        self._default: SessionEnd | None = None
        self._names = 0
        self._container = Container()
        self._container.start()
        self._container.timeout = _TURN_S
        self.connection = self._container.connect(
            f"{scheme}://{host}:{port}",
            handler=self,
            reconnect=False,
            user=user,
            password=password,
            allowed_mechs=mechanisms,
            **options,
        )
        self._running = True
        if wait:
            try:
                self.wait(lambda: self.remote_open, "open")
            except BaseException:
                self._finish()  # nobody else can: an open socket is found, and complained of, in another test
                raise

    # --- the event loop ---------------------------------------------------------------------------

    def wait(
        self, condition: Callable[[], Any], what: str | Callable[[], str], *, timeout_s: float = WAIT_S
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            text = what if isinstance(what, str) else what()
            if self.disconnected is not None:
                raise Disconnected(f"{self.disconnected}; awaited: {text}; close: {self.remote_close}")
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {text}"
            self._turn()

    def wait_closed(self) -> tuple[str | None, str | None]:
        """Wait for the broker's close; return condition and description."""
        self.wait(lambda: self.remote_close is not None, "close by the broker")
        assert self.remote_close is not None
        return self.remote_close

    def wait_disconnected(self) -> None:
        """Wait until the connection is closed, in whatever way."""
        self.wait(lambda: self.disconnected is not None, "end of the connection")

    def flush(self) -> None:
        """Send what is pending, and wait until the broker has read it: another session begins and ends. The
        effects in the broker's other tasks come later; poll its status to wait for them.
        """
        probe = self.session()
        self.wait(lambda: probe.opened, "begin")
        probe.session.close()
        self.wait(lambda: probe.closed, "end")

    def _turn(self) -> None:
        if not self._container.process():
            self._running = False
            self.disconnected = self.disconnected or "proton has nothing more to do"

    # --- making things ----------------------------------------------------------------------------

    def session(self) -> SessionEnd:
        session = self.connection.session()
        end = SessionEnd(session)
        session.open()
        return end

    def sender(self, address: str | None, *, wait: bool = True, **options: Any) -> SendingEnd:
        link = self._context(options).sender(options.pop("name", None) or self._name())
        link.source.address = options.pop("source", None)
        if address is not None:
            link.target.address = address
        else:
            link.target.type = Terminus.TARGET
        self._open(link, options)
        end = SendingEnd(self, link)
        if wait:
            end.wait_attached()
        return end

    def receiver(
        self, address: str | None, *, credit: int = 0, wait: bool = True, **options: Any
    ) -> ReceivingEnd:
        """Attach a link to consume from, and grant credit if any is given."""
        link = self._context(options).receiver(options.pop("name", None) or self._name())
        link.source.address = address
        if options.pop("dynamic", False):
            link.source.dynamic = True
        self._open(link, options)
        end = ReceivingEnd(self, link)
        if credit:
            end.grant(credit)
        if wait:
            end.wait_attached()
        return end

    def _open(self, link: Link, options: dict[str, Any]) -> None:
        for apply in options.pop("apply", ()):
            apply(link)
        for name in ("snd_settle_mode", "rcv_settle_mode", "max_message_size", "properties"):
            if name in options:
                setattr(link, name, options.pop(name))
        assert not options, f"unknown options {options}"
        link.open()

    def _context(self, options: dict[str, Any]) -> Session:
        given: SessionEnd | None = options.pop("session", None)
        if given is not None:
            return given.session
        if self._default is None:
            self._default = self.session()
        return self._default.session

    def _name(self) -> str:
        self._names += 1
        return f"{self.connection.container}-{self._names}"

    # --- ending -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close in order; does nothing if the connection is over."""
        if self._container is None:
            return
        if self.disconnected is None:
            self.connection.close()
            try:
                self.wait(lambda: self.remote_close is not None, "close")
            except Disconnected:
                pass
        self._finish()

    def lose(self) -> None:
        """Shut the socket without a close frame."""
        self._socket().shutdown(socket.SHUT_RDWR)
        self.wait_disconnected()
        self._finish()

    def _socket(self) -> socket.socket:
        found: socket.socket = self.connection.transport._selectable._delegate
        return found

    def _finish(self) -> None:
        """Release what proton still holds; otherwise its socket stays open."""
        transport = self.connection.transport
        if transport is not None:
            selectable = getattr(transport, "_selectable", None)
            transport.close_head()
            transport.close_tail()
            if selectable is not None:
                selectable.terminate()
                selectable.update()
        deadline = time.monotonic() + WAIT_S
        while self._running and self._container.process():
            assert time.monotonic() < deadline, "proton does not end"
            if not self._container._selectables > 1:
                break
        self._container.stop_events()
        self._container = None

    # --- events -----------------------------------------------------------------------------------

    def on_connection_remote_open(self, event: Event) -> None:
        self.remote_open = True

    def on_connection_remote_close(self, event: Event) -> None:
        found = event.connection.remote_condition
        self.remote_close = (found.name, found.description) if found else (None, None)

    def on_transport_tail_closed(self, event: Event) -> None:
        self.on_transport_closed(event)

    def on_transport_closed(self, event: Event) -> None:
        found = event.transport.condition
        self.disconnected = self.disconnected or (f"{found.name}: {found.description}" if found else "closed")
