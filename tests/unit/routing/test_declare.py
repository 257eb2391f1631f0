"""Declaring and deleting exchanges."""

from __future__ import annotations

import pytest

from amqp10broker.errors import Inequivalent, InUse, InvalidArgument
from tests.support.topologies import Small, declare_exchange, delete_exchange, exchange, unbind


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
    """An alternate is a name."""
    with pytest.raises(InvalidArgument) as refusal:
        declare_exchange(Small().topology, "x", arguments={"alternate-exchange": 5})
    assert refusal.value.description == (
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    )


def test_delete_if_unused_wants_no_bindings_from_it() -> None:
    """A bound exchange is in use; one that is only a destination is not."""
    small = Small("q")
    small.declare("x")
    small.bind("amq.fanout", exchange("x"))
    binding = small.bind("x", "q")
    with pytest.raises(InUse) as refusal:
        delete_exchange(small.topology, "x", if_unused=True)
    assert refusal.value.description == "exchange 'x' in vhost '/' in use"
    unbind(small.topology, binding)
    assert delete_exchange(small.topology, "x", if_unused=True)


@pytest.mark.rabbitmq(
    "bindings_SUITE", "bind_and_delete_exchange_destination", "bind_and_delete_exchange_source"
)
def test_delete_takes_bindings_on_both_sides() -> None:
    """Nothing is left that names the exchange, also if it is made again."""
    small = Small("q")
    small.declare("x", "fanout")
    small.bind("x", "q")
    small.bind("amq.fanout", exchange("x"))
    delete_exchange(small.topology, "x")
    assert small.topology.bindings() == []
    assert small.route("amq.fanout") == ()
    small.declare("x", "fanout")
    assert small.route("x") == ()


def test_version_grows_with_every_change() -> None:
    """A cached route is good while the version stays."""
    small = Small("q")
    versions = [small.topology.version]

    def note() -> None:
        versions.append(small.topology.version)

    small.declare("x")
    note()
    binding = small.bind("x", "q")
    note()
    unbind(small.topology, binding)
    note()
    small.bind("x", "q")
    note()
    small.delete_queue("q")
    note()
    delete_exchange(small.topology, "x")
    note()
    assert versions == sorted(set(versions))
