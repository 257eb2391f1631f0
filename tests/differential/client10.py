"""The AMQP 1.0 client of the operation scripts: proton, one session, every answer as a line.

A session that the broker ended is begun again with the next operation, and so is a connection; links have
names in the script and live as long as their session.
"""

from __future__ import annotations

from typing import Any, Final

import proton
from proton import Delivery, Message, Terminus, symbol

from tests.differential.language import mask, show_fields
from tests.differential.messages10 import make_message, show_body, show_message
from tests.support.proton_client import (
    Disconnected,
    LinkEnd,
    ProtonClient,
    ReceivingEnd,
    SendingEnd,
    SessionEnd,
)

WAIT_S: Final = 10.0
"""What has not come by then does not come: the next operation is performed."""
_STATES: Final = {
    int(Delivery.ACCEPTED): "accepted",
    int(Delivery.REJECTED): "rejected",
    int(Delivery.RELEASED): "released",
    int(Delivery.MODIFIED): "modified",
}
_OUTCOMES: Final = {name: state for state, name in _STATES.items()}
_NULL_BODY: Final = bytes.fromhex("00537740")
_PROBE: Final = "/queues/limited.probe"
"""A queue that is never there, and that every user of the scripts may look for."""


class Client10:
    """One connection with one session.

    Args:
        names: what the broker made up for any client of the script: ``DYNAMIC`` is the last address.
        options: for `ProtonClient`.
    """

    def __init__(self, names: dict[str, str], **options: Any) -> None:
        self._names = names
        self._options = options
        self._client: ProtonClient | None = None
        self._session: SessionEnd | None = None
        self._links: dict[str, Any] = {}
        self._requests = 0
        self._received: dict[str, list[Any]] = {}

    def perform(self, operation: str, *positional: Any, **named: Any) -> list[str]:
        client, session = self.client, self.session
        try:
            done: list[str] = getattr(self, operation)(*positional, **named)
        except Disconnected:
            return ["disconnected"]
        finally:
            if session.closed:
                self._session = None
        if client.remote_close is not None:
            condition, description = client.remote_close
            return [f"connection closed {condition} {mask(description or '')}"]
        if session.closed:
            return [f"session ended {session.condition} {mask(session.description or '')}"]
        return done

    @property
    def client(self) -> ProtonClient:
        if self._client is None or self._client.disconnected or self._client.remote_close:
            if self._client is not None:
                self._client.close()
            self._session = None
            self._client = ProtonClient(**self._options)
        return self._client

    @property
    def session(self) -> SessionEnd:
        if self._session is None:
            self._links.clear()
            self._session = self.client.session()
        return self._session

    def close(self) -> list[str]:
        if self._client is not None:
            self._client.close()
        self._client = None
        self._session = None
        return ["closed"]

    def end(self) -> list[str]:
        session = self.session
        session.session.close()
        self.client.wait(lambda: session.closed, "end")
        session.closed = False
        self._session = None
        return ["ended"]

    def _wait(self, condition: Any, what: str) -> None:
        client, session = self.client, self.session
        client.wait(lambda: condition() or session.closed or client.remote_close, what, timeout_s=WAIT_S)

    # --- links ------------------------------------------------------------------------------------

    def sender(self, name: str, address: str | None, *, mixed: bool = False) -> list[str]:
        mode = proton.Link.SND_MIXED if mixed else proton.Link.SND_UNSETTLED
        end = self.client.sender(
            self._known(address), wait=False, name=name, session=self.session, snd_settle_mode=mode
        )
        return self._attached(name, end)

    def receiver(
        self,
        name: str,
        address: str | None,
        *,
        credit: int = 0,
        settled: bool = False,
        dynamic: tuple[str, ...] = (),
    ) -> list[str]:
        """Attach a link to consume from, with at most the given credit."""

        def apply(link: Any) -> None:
            link.source.dynamic = True
            link.source.expiry_policy = Terminus.EXPIRE_WITH_LINK
            link.source.capabilities.put_array(False, proton.Data.SYMBOL)
            link.source.capabilities.enter()
            for capability in dynamic:
                link.source.capabilities.put_symbol(capability)
            link.source.capabilities.exit()

        end = self.client.receiver(
            self._known(address),
            wait=False,
            name=name,
            credit=credit,
            session=self.session,
            snd_settle_mode=proton.Link.SND_SETTLED if settled else proton.Link.SND_UNSETTLED,
            apply=[apply] if dynamic else [],
        )
        self._received[name] = []
        lines = self._attached(name, end)
        if dynamic and not end.closed:
            self._names["DYNAMIC"] = str(end.link.remote_source.address)
        return lines

    def _known(self, address: str | None) -> str | None:
        return None if address is None else self._names.get(address, address)

    def _attached(self, name: str, end: LinkEnd) -> list[str]:
        self._links[name] = end
        self._wait(lambda: end.closed or end.attached, "attach")
        link = end.link
        terminus = link.remote_target if isinstance(end, SendingEnd) else link.remote_source
        if not end.closed and terminus.type == Terminus.UNSPECIFIED:
            self._wait(lambda: end.closed, "detach")  # a refused attach has no terminus
        if end.closed:
            return [f"refused {end.condition} {mask(end.description or '')}"]
        return [f"attached {show_fields(address=terminus.address)}"]

    def detach(self, name: str) -> list[str]:
        self._links.pop(name).close()
        return ["detached"]

    def detached_by_broker(self, name: str) -> list[str]:
        end = self._links[name]
        self._wait(lambda: end.closed, f"detach of {name}")
        return [_detached(end)]

    # --- messages ---------------------------------------------------------------------------------

    def send(self, name: str, body: Any, *, settled: bool = False, **fields: Any) -> list[str]:
        """Publish one message; bytes are a data section, everything else a value."""
        end: SendingEnd = self._links[name]
        self._wait(lambda: end.link.credit > 0 or end.closed, "credit")
        if end.closed or self.session.closed:
            return [_detached(end)]
        tag = end.transfer_now(make_message(body, **fields), settled=settled)
        if settled:
            self._probe()
            return [_detached(end) if end.closed else "sent"]
        self._wait(lambda: tag in end.outcomes or end.closed, "an outcome")
        lines = []
        if tag in end.outcomes:
            outcome = end.outcomes[tag]
            words = [_STATES[outcome.state], outcome.condition, outcome.description]
            lines.append(mask(" ".join(str(word) for word in words if word)))
            self._probe()
        return [*lines, _detached(end)] if end.closed else lines

    def grant(self, name: str, credit: int) -> list[str]:
        self._links[name].grant(credit)
        return ["granted"]

    def take(self, name: str, count: int = 1) -> list[str]:
        end: ReceivingEnd = self._links[name]
        self._wait(lambda: len(end.received) - end.taken >= count or end.closed, f"{count} deliveries")
        taken = end.received[end.taken : end.taken + count]
        end.taken += len(taken)
        self._received[name] += taken
        lines = [line for each in taken for line in show_message(each.message, settled=each.settled)]
        return [*lines, _detached(end)] if end.closed else lines

    def drain(self, name: str) -> list[str]:
        """Drain all credit and count the messages that came before."""
        end: ReceivingEnd = self._links[name]
        end.drain()
        return [f"{len(end.received) - end.taken} deliveries waiting"]

    def settle(
        self,
        name: str,
        number: int,
        outcome: str,
        *,
        failed: bool = False,
        undeliverable: bool = False,
        annotations: Any = None,
    ) -> list[str]:
        """Settle the delivery that `take` showed as the link's number."""
        end: ReceivingEnd = self._links[name]
        delivery = self._received[name][number].delivery
        if outcome == "modified":
            delivery.local.failed = failed
            delivery.local.undeliverable = undeliverable
            if annotations is not None:
                delivery.local.annotations = annotations
        delivery.update(_OUTCOMES[outcome])
        delivery.settle()
        self._probe()
        return [_detached(end) if end.closed else "settled"]

    # --- management -------------------------------------------------------------------------------

    def request(self, method: str, to: str, body: Any = None) -> list[str]:
        answer = self._request(method, to.replace("DYNAMIC", self._names.get("DYNAMIC", "")), body)
        if answer is None:
            return ["no answer"]
        return [f"{answer.subject} {show_body(answer.body)}"]

    def _request(self, method: str, to: str, body: Any) -> Message | None:
        if "management" not in self._links:
            pair: dict[str, Any] = {
                "name": "management",
                "session": self.session,
                "properties": {symbol("paired"): True},
            }
            settled = proton.Link.SND_SETTLED
            sending = self.client.sender(
                "/management", source="me", snd_settle_mode=settled, wait=False, **pair
            )

            def apply(link: Any) -> None:
                link.target.address = "me"

            receiving = self.client.receiver(
                "/management", snd_settle_mode=settled, apply=[apply], wait=False, **pair
            )
            self._links["management"] = (sending, receiving)
        sending, receiving = self._links["management"]
        receiving.grant(1)
        self._requests += 1
        message = Message(id=proton.ulong(self._requests), address=to, subject=method, reply_to="$me")
        message.body = body
        data = message.encode() + (_NULL_BODY if body is None else b"")
        self._wait(lambda: sending.link.credit > 0, "credit for a request")
        if self.session.closed:
            return None
        sending.transfer_now(data, settled=True)
        self._wait(lambda: len(receiving.received) > receiving.taken, "a response")
        if self.session.closed:
            return None
        answer: Message = receiving.take()[0].message
        assert answer.correlation_id == self._requests
        return answer

    def _probe(self) -> None:
        """Send a request: its answer shows that all sent before it has been handled, in session order."""
        self._request("GET", _PROBE, None)


def _detached(end: LinkEnd) -> str:
    return f"detached {end.condition} {mask(end.description or '')}"
