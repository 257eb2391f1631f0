"""Declaring and deleting exchanges."""

from __future__ import annotations

import pytest

from amqp10broker.errors import Inequivalent, InvalidArgument
from tests.support.topologies import Small, declare_exchange


def test_predeclared_exchanges() -> None:
    """Every virtual host begins with these, all of them durable."""
    found = {one.name: (one.type, one.internal) for one in Small().topology}
    assert found == {
        "": ("direct", False),
        "amq.direct": ("direct", False),
        "amq.fanout": ("fanout", False),
        "amq.topic": ("topic", False),
        "amq.headers": ("headers", False),
        "amq.match": ("headers", False),
        "amq.rabbitmq.trace": ("topic", True),
    }
    assert all(one.durable and not one.auto_delete for one in Small().topology)


@pytest.mark.parametrize(
    ("changed", "argument", "told"),
    [
        ({"type": "fanout"}, "type", "received 'fanout' but current is 'direct'"),
        ({"durable": False}, "durable", "received 'false' but current is 'true'"),
        ({"auto_delete": True}, "auto_delete", "received 'true' but current is 'false'"),
        ({"internal": True}, "internal", "received 'true' but current is 'false'"),
        (
            {"arguments": {}},
            "alternate-exchange",
            "received none but current is the value 'ae' of type 'longstr'",
        ),
        (
            {"arguments": {"alternate-exchange": "other"}},
            "alternate-exchange",
            "received 'other' but current is 'ae'",
        ),
    ],
)
def test_different_redeclaration_is_refused(changed: dict[str, object], argument: str, told: str) -> None:
    """The first difference is told, and the exchange stays as it was."""
    small = Small()
    small.declare("x", alternate_exchange="ae")
    with pytest.raises(Inequivalent) as refusal:
        declare_exchange(small.topology, "x", **{"arguments": {"alternate-exchange": "ae"}, **changed})  # type: ignore[arg-type]
    assert refusal.value.description == (
        f"inequivalent arg '{argument}' for exchange 'x' in vhost '/': {told}"
    )
    assert small.topology.lookup_exchange("x").alternate == "ae"


def test_alternate_must_be_text() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        declare_exchange(Small().topology, "x", arguments={"alternate-exchange": 5})
    assert refusal.value.description == (
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    )
