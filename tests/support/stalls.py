"""What a broker process says of something that waits, for tests that stage a stall and look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.support.broker_process import BrokerProcess

RECEIVER = "receiver"
SENDER = "sender"


def links(broker: BrokerProcess) -> Iterator[dict[str, Any]]:
    """All links of AMQP 1.0."""
    for connection in broker.status()["connections"]:
        for session in connection["sessions"]:
            yield from session["links"]


def waits(
    broker: BrokerProcess,
    code: str | None,
    *,
    role: str = RECEIVER,
    name: str | None = None,
    address: str | None = None,
    says: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Wait until a link waits for this reason and says all of this; returns its status.

    Args:
        broker: the process.
        code: None: it does not wait.
        role: of the client.
        name: of the link; None: any.
        address: part of its address; None: any.
        says: parts of the sentence.
    """

    def fits(link: dict[str, Any]) -> bool:
        return (
            link["role"] == role
            and (name is None or link["name"] == name)
            and (address is None or address in (link["address"] or ""))
            and link["waits"] == code
            and all(part in (link["waits_why"] or "") for part in says)
        )

    found: dict[str, Any] = _until(broker, lambda: filter(fits, links(broker)), f"{code}: {says}")
    assert (found["waits_for_s"] is None) == (code is None)
    assert code is None or found["waits_for_s"] >= 0
    return found


def consumer_waits(
    broker: BrokerProcess, code: str | None, tag: str, *, says: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Likewise for a consumer of AMQP 0-9-1, by its tag."""

    def found() -> Iterator[dict[str, Any]]:
        for connection in broker.status()["connections"]:
            for channel in connection.get("channels", ()):
                for consumer in channel["consumers"]:
                    if (consumer["tag"], consumer["waits"]) == (tag, code) and all(
                        part in (consumer["waits_why"] or "") for part in says
                    ):
                        yield consumer

    consumer: dict[str, Any] = _until(broker, found, f"{tag} {code}: {says}")
    return consumer


def _until(broker: BrokerProcess, find: Callable[[], Iterator[dict[str, Any]]], what: str) -> Any:
    return broker.wait_until(lambda: next(iter(find()), None), what)
