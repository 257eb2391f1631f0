"""The registry of exchange types, and types of installed packages."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from amqp10broker.errors import PreconditionFailed
from amqp10broker.routing.exchange import NOTHING, Choose
from amqp10broker.routing.registry import REGISTRY, FanoutExchange, Registry, register
from amqp10broker.routing.topology import Topology
from tests.support.topologies import Small, bind, declare_exchange, remove_queue

MODULE = '''
"""Routes to the destinations whose binding key is the length of the routing key."""


class ByLength:
    cacheable = True
    per_key = True

    def __init__(self, arguments, choose):
        self.bindings = []

    def check_binding(self, binding):
        pass

    def add(self, binding):
        self.bindings.append(binding)

    def remove(self, binding):
        self.bindings.remove(binding)

    def route(self, routing_key, headers, properties):
        return [one.destination for one in self.bindings if one.routing_key == str(len(routing_key))]
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a tiny distribution, as pip would lay it out, that adds two types; one is broken."""
    (tmp_path / "exchange_by_length.py").write_text(MODULE)
    meta = tmp_path / "exchange_by_length-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: exchange-by-length\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(
        "[amqp10broker.exchange_types]\n"
        "x-by-length = exchange_by_length:ByLength\n"
        "x-broken = exchange_by_length_missing:Nothing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("exchange_by_length", None)


def test_installed_package_adds_a_type(installed: Path) -> None:
    """An entry point of an installed distribution is found, loaded and used."""
    topology = Topology("/", lambda name: True, registry=Registry())
    found, created = declare_exchange(topology, "x", "x-by-length")
    assert created
    bind(topology, Small.binding("x", "three", "3"))
    bind(topology, Small.binding("x", "four", "4"))
    assert topology.route(found, ("abc",)) == (("three",), True)
    assert topology.route(found, ("abc", "abcd")) == (("three", "four"), True)
    remove_queue(topology, "three")
    assert topology.route(found, ("abc",)) == ((), True)


def test_package_is_loaded_only_when_its_type_is_used(installed: Path) -> None:
    """Other unknown types, and types of this package, load nothing of anybody else's."""
    registry = Registry()
    registry.create("topic", NOTHING, lambda count: 0)
    with pytest.raises(PreconditionFailed):
        registry.factory("x-nothing")
    assert "x-by-length" in registry.names()
    assert "exchange_by_length" not in sys.modules
    registry.factory("x-by-length")
    assert "exchange_by_length" in sys.modules


def test_package_that_cannot_be_loaded_is_named(installed: Path) -> None:
    """The error says which package is at fault."""
    with pytest.raises(
        PreconditionFailed, match="cannot be loaded from exchange_by_length_missing:Nothing"
    ) as refusal:
        Registry().factory("x-broken")
    assert "repair or uninstall that package" in refusal.value.description


def test_entry_points_are_read_at_most_once() -> None:
    """A client that asks for unknown types again and again does not make the broker search the disk."""
    searches = []
    registry = Registry(lambda: searches.append(1) or ())  # type: ignore[func-returns-value]
    registry.factory("direct")
    assert searches == []
    for name in ("x-1", "x-2", "x-1"):
        with pytest.raises(PreconditionFailed):
            registry.factory(name)
    assert searches == [1]


def test_registered_factory_gets_arguments_and_chance() -> None:
    """A program adds a type by a factory; it sees the exchange's arguments."""
    seen: list[tuple[dict[str, object], int]] = []

    def factory(arguments: Mapping[str, object], choose: Choose) -> FanoutExchange:
        seen.append((dict(arguments), choose(3)))
        return FanoutExchange()

    registry = Registry()
    registry.register("x-mine", factory)
    topology = Topology("/", lambda name: True, choose=lambda count: count - 1, registry=registry)
    declare_exchange(topology, "x", "x-mine", arguments={"a": 1})
    assert seen == [({"a": 1}, 2)] * 2, "asked whether it can be made, and made"


def test_register_adds_to_the_common_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """`register` is for the registry that every virtual host uses."""
    monkeypatch.setattr(REGISTRY, "_factories", dict(REGISTRY._factories))
    register("x-mine", lambda arguments, choose: FanoutExchange())
    assert declare_exchange(Small().topology, "x", "x-mine")[1]
