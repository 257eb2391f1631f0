"""What a change of the catalog costs does not grow with what is declared already."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import Owner
from amqp10broker.metadata.queue_requests import Bind, ConnectionEnded, DeclareQueue, DeleteQueue, Unbind
from amqp10broker.metadata.vhost_requests import DeleteVhost
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.declaring import add_vhost, bind, declare, declare_exchange, load
from tests.support.kept_entries import Host
from tests.support.steps import steps_of

MINE, NOBODYS = Owner(1, 1, 1), Owner(1, 1, 2)


def queue(name: str) -> Destination:
    return Destination("queue", name)


def with_number(number: int) -> Binding:
    """A binding that only its arguments tell from others."""
    return Binding("by-header", queue("all"), "", {"n": number})


def furnished(count: int) -> Catalog:
    """So many queues and bindings, the last of which are as those before."""
    catalog = Catalog(Host().start_queue)
    add_vhost(catalog, "v")
    declare_exchange(catalog, "v", "by-header", "headers")
    declare_exchange(catalog, "v", "going", "fanout", auto_delete=True)
    declare(catalog, "v", "all")
    declare(catalog, "v", "mine", exclusive_owner=MINE)
    for number in range(100, 100 + count):
        name = f"q{number}"
        declare(catalog, "v", name)
        bind(catalog, "v", Binding("amq.topic", queue(name), f"k.{number}"))
        bind(catalog, "v", Binding("going", queue(name), ""))
        bind(catalog, "v", with_number(number))
    return catalog


REQUESTS = {
    "declare": lambda last: DeclareQueue("v", "new"),
    "declare again": lambda last: DeclareQueue("v", f"q{last}"),
    "bind": lambda last: Bind("v", Binding("amq.topic", queue(f"q{last}"), "new")),
    "bind with arguments": lambda last: Bind("v", with_number(last + 1)),
    "unbind": lambda last: Unbind("v", Binding("amq.topic", queue(f"q{last}"), f"k.{last}")),
    "unbind with arguments": lambda last: Unbind("v", with_number(last)),
    "delete a queue": lambda last: DeleteQueue("v", f"q{last}"),
    "a connection without queues ends": lambda last: ConnectionEnded("v", NOBODYS),
    "a connection ends": lambda last: ConnectionEnded("v", MINE),
}


@pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS.keys())
def test_one_change_costs_the_same_however_much_there_is(make: Callable[[int], object]) -> None:
    """Among 20, and among 400."""

    def steps(count: int) -> int:
        catalog = furnished(count)
        request = make(99 + count)
        return steps_of(lambda: catalog.propose(request))  # type: ignore[arg-type]  # of any answer

    assert steps(400) <= steps(20) * 1.2


@pytest.mark.parametrize("request_", [DeleteVhost("v"), DeleteQueue("v", "all")], ids=["vhost", "queue"])
def test_what_takes_much_along_costs_as_much_as_there_is(request_: DeleteVhost | DeleteQueue) -> None:
    """Four times as much for four times as many, in whatever order the bindings go."""

    def steps(count: int) -> int:
        catalog = furnished(count)
        return steps_of(lambda: catalog.propose(request_))

    assert steps(400) < steps(100) * 5


def test_a_definitions_file_is_planned_without_the_bindings_that_are_there() -> None:
    """A small file must not hold a big broker up."""
    document = {
        "bindings": [
            {"vhost": "v", "source": "by-header", "destination": "all", "destination_type": "queue",
             "routing_key": "", "arguments": {"n": 100}},
        ]
    }  # fmt: skip

    def steps(count: int) -> int:
        catalog = furnished(1)
        for number in range(101, 101 + count):
            bind(catalog, "v", with_number(number))
        before = catalog.lookup_vhost("v").version
        found = steps_of(lambda: load(document, catalog))
        assert catalog.lookup_vhost("v").version == before
        return found

    steps(0)  # Records are compiled at their first use, which does not count.
    assert steps(400) <= steps(0) * 1.2
