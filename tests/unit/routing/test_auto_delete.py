"""Exchanges that delete themselves."""

from __future__ import annotations

from tests.support.topologies import Small, bind, delete_exchange, exchange, unbind


def test_auto_delete_stays_while_nothing_was_ever_bound() -> None:
    """An unbind of what is not there does not count."""
    small = Small("q")
    small.declare("x", auto_delete=True)
    unbind(small.topology, small.binding("x", "q"))
    small.delete_queue("q")
    assert small.exchanges() == {"x"}


def test_auto_delete_does_not_look_at_bindings_to_it() -> None:
    """Being a destination neither keeps it nor, when that ends, deletes it."""
    small = Small("q")
    small.declare("x", auto_delete=True)
    to_it = small.bind("amq.fanout", exchange("x"))
    unbind(small.topology, to_it)
    assert small.exchanges() == {"x"}
    bind(small.topology, to_it)
    unbind(small.topology, small.bind("x", "q"))
    assert small.exchanges() == set()
    assert small.topology.bindings() == []


def test_deleted_queue_takes_auto_delete_exchanges_along() -> None:
    """Its bindings go like any others."""
    small = Small("q", "r")
    small.declare("x", auto_delete=True)
    small.declare("y", auto_delete=True)
    small.bind("x", "q", "1")
    small.bind("x", "q", "2")
    small.bind("y", "q")
    small.bind("y", "r")
    small.delete_queue("q")
    assert small.exchanges() == {"y"}
    assert small.route("y") == ("r",)


def test_auto_delete_cascades_along_bindings_between_exchanges() -> None:
    """Bindings to a deleted exchange go, which may be the last ones of their sources, and so on."""
    small = Small("q", "r")
    for name in ("a", "b", "c", "d"):
        small.declare(name, "fanout", auto_delete=name != "d")
    small.bind("a", exchange("b"))
    small.bind("b", exchange("c"))
    small.bind("d", exchange("c"))
    small.bind("c", "q")
    small.delete_queue("q")
    assert small.exchanges() == {"d"}
    assert small.topology.bindings() == []
    assert small.route("d") == ()


def test_deleting_an_exchange_cascades_too() -> None:
    """Its sources may have lost their last binding."""
    small = Small("q")
    small.declare("a", auto_delete=True)
    small.declare("b")
    small.bind("a", exchange("b"))
    delete_exchange(small.topology, "b")
    assert small.exchanges() == set()


def test_auto_delete_in_a_cycle() -> None:
    """A cycle of bindings is taken apart to its end, and an exchange bound to itself is too."""
    small = Small("q")
    for name in ("a", "b"):
        small.declare(name, auto_delete=True)
    small.bind("a", exchange("b"))
    small.bind("b", exchange("a"))
    small.bind("a", exchange("a"))
    delete_exchange(small.topology, "a")
    assert small.exchanges() == set()
    assert small.topology.bindings() == []
