"""Routes of one publisher: what they remember of messages, and that it has an end."""

from __future__ import annotations

from amqp10broker.auth.authorise import Access, CatalogGrants
from amqp10broker.sessions.routes import HEAD_BYTES_MAX, HEADS_MAX, Routes
from tests.support.channel_world import World


def make_routes() -> Routes:
    world = World()
    return Routes(world.vhost, Access(CatalogGrants(world.catalog.users, "guest"), "/"))


def test_what_repeats_is_remembered_for_each_route() -> None:
    """Also when the route is found anew because something was declared."""
    routes = make_routes()
    one, two = routes.find("", "one"), routes.find("", "two")
    routes.remember(one, b"properties", b"head one")
    routes.remember(two, b"properties", b"head two")
    assert one.heads == {b"properties": b"head one"}
    routes.find("amq.direct", "")
    assert routes.find("", "two").heads == {b"properties": b"head two"}


def test_properties_that_never_repeat_take_no_more_room_on_many_routes() -> None:
    """A server that answers under many keys, each message with an id of its own."""
    routes = make_routes()
    for number in range(10 * HEADS_MAX):
        route = routes.find("", f"key {number % 100}")
        routes.remember(route, b"%d" % number, b"head")
        assert route.heads[b"%d" % number] == b"head"
    assert sum(len(routes.find("", f"key {number}").heads) for number in range(100)) <= HEADS_MAX


def test_large_properties_are_not_remembered() -> None:
    """They would take more than they save."""
    routes = make_routes()
    route = routes.find("", "key")
    routes.remember(route, bytes(HEAD_BYTES_MAX + 1), b"head")
    assert route.heads == {}
