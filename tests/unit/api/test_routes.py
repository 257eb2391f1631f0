"""Paths to endpoints."""

from __future__ import annotations

import pytest

from amqp10broker.api.front import Endpoint, HttpRoute, Router, Tag


def route(pattern: str, *methods: str) -> HttpRoute:
    return HttpRoute(pattern, {method: Endpoint(Tag.MANAGEMENT, pattern) for method in methods})


QUEUE = route("/api/queues/{vhost}/{name}", "GET", "PUT", "DELETE")
DETAILED = route("/api/queues/detailed", "GET")
QUEUES = route("/api/queues/{vhost}", "GET")
USER = route("/api/connections/username/{user}", "GET")
CHANNELS = route("/api/connections/{name}/channels", "GET")
ROUTER = Router([QUEUES, QUEUE, DETAILED, CHANNELS, USER])


@pytest.mark.parametrize(
    ("segments", "expected", "values"),
    [
        (("api", "queues", "detailed"), DETAILED, {}),
        (("api", "queues", "/"), QUEUES, {"vhost": "/"}),
        (("api", "queues", "/", "q/1"), QUEUE, {"vhost": "/", "name": "q/1"}),
        (("api", "connections", "username", "channels"), USER, {"user": "channels"}),
        (("api", "connections", "c", "channels"), CHANNELS, {"name": "c"}),
    ],
)
def test_of_two_patterns_the_one_that_says_more_counts(
    segments: tuple[str, ...], expected: HttpRoute, values: dict[str, str]
) -> None:
    assert ROUTER.find(segments) == (expected, values)


def test_two_patterns_of_the_same_paths_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="mean the same paths"):
        Router([QUEUES, route("/api/queues/{other}", "GET")])
