"""x-arguments: types, values, kinds, equivalence; one case a rule, with its text."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import Inequivalent, InvalidArgument
from amqp10broker.metadata import queue_settings
from amqp10broker.metadata.queue import QueueType
from amqp10broker.metadata.queue_settings import ARGUMENTS
from amqp10broker.protocols.amqp091.codec import ByteArray, Int8, Timestamp

Q = "queue 'q' in vhost '/'"
CLASSIC, QUORUM, STREAM = QueueType.CLASSIC, QueueType.QUORUM, QueueType.STREAM
DLX = {"x-dead-letter-exchange": "dlx"}
SUBSCRIPTION = (
    "must have topic and may have container, name, durable, shared, selector, no_local, each of its type"
)
MAX_AGE = "must be a number above 0 and a unit of Y, M, D, h, m, s, such as '7D', not "


@pytest.mark.rabbitmq("quorum_queue_SUITE", "declare_args", "long_name")
@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "initial_cluster_size_one")
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (CLASSIC, {"x-expires": 1}),
        (CLASSIC, {"x-expires": 315_360_000_000}),
        (CLASSIC, {"x-expires": Int8(5)}),
        (CLASSIC, {"x-message-ttl": 0}),
        (CLASSIC, {"x-dead-letter-exchange": ""}),
        (CLASSIC, {**DLX, "x-dead-letter-routing-key": "k"}),
        (QUORUM, {**DLX, "x-dead-letter-strategy": "at-least-once"}),
        (CLASSIC, {"x-max-length": 0, "x-max-length-bytes": 10**12}),
        (CLASSIC, {"x-overflow": "reject-publish-dlx"}),
        (CLASSIC, {"x-max-priority": 255}),
        (QUORUM, {"x-single-active-consumer": True}),
        (QUORUM, {"x-queue-leader-locator": "balanced"}),
        (QUORUM, {"x-queue-leader-locator": "random"}),
        (STREAM, {"x-queue-leader-locator": "least-leaders"}),
        (CLASSIC, {"x-queue-leader-locator": "min-masters"}),
        (CLASSIC, {"x-queue-master-locator": "min-masters"}),
        (CLASSIC, {"x-confirm-when": "written"}),
        (CLASSIC, {"x-queue-mode": "lazy", "x-queue-version": 2}),
        (QUORUM, {"x-delivery-limit": -1}),
        (QUORUM, {"x-quorum-initial-group-size": 3, "x-quorum-target-group-size": 5}),
        (QUORUM, {"x-max-in-memory-length": 0, "x-max-in-memory-bytes": 0}),
        (QUORUM, {"x-consumer-timeout": 0, "x-consumer-disconnected-timeout": 1}),
        (
            QUORUM,
            {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 5, "x-delayed-retry-max": 5},
        ),
        (STREAM, {"x-max-age": "7D", "x-stream-max-segment-size-bytes": 0, "x-initial-cluster-size": 1}),
        (STREAM, {"x-stream-filter-size-bytes": 16}),
        (CLASSIC, {"x-nobody-knows": object(), "custom": None}),
    ],
)
def test_good_arguments_are_accepted(kind: QueueType, arguments: dict[str, Any]) -> None:
    """Values within range, and names that no kind of queue knows."""
    queue_settings.check(arguments, kind, Q)
    assert set(arguments) <= set(ARGUMENTS) | {"x-nobody-knows", "custom"}


@pytest.mark.rabbitmq("priority_queue_SUITE", "max_priorities_above_hard_limit", "negative_max_priorities")
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "declare_invalid_arg_1",
    "declare_invalid_arg_3",
    "declare_invalid_consumer_disconnected_timeout",
    "declare_invalid_consumer_timeout",
)
@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE", "declare_invalid_filter_size", "max_segment_size_bytes_validation"
)
@pytest.mark.parametrize(
    ("kind", "arguments", "name", "fault"),
    [
        (CLASSIC, {"x-expires": 0}, "x-expires", "must be 1 to 315360000000, not 0"),
        (CLASSIC, {"x-expires": -5}, "x-expires", "must be 1 to 315360000000, not -5"),
        (CLASSIC, {"x-expires": 315_360_000_001}, "x-expires", "must be 1 to 315360000000, not 315360000001"),
        (CLASSIC, {"x-expires": "10"}, "x-expires", "must be an integer, not longstr"),
        (CLASSIC, {"x-expires": True}, "x-expires", "must be an integer, not bool"),
        (CLASSIC, {"x-expires": 1.0}, "x-expires", "must be an integer, not double"),
        (CLASSIC, {"x-expires": Timestamp(1)}, "x-expires", "must be an integer, not timestamp"),
        (CLASSIC, {"x-expires": None}, "x-expires", "must be an integer, not void"),
        (CLASSIC, {"x-message-ttl": -1}, "x-message-ttl", "must be 0 to 315360000000, not -1"),
        (QUORUM, {"x-message-ttl": 10**12}, "x-message-ttl", "must be 0 to 315360000000, not 1000000000000"),
        (CLASSIC, {"x-dead-letter-exchange": 1}, "x-dead-letter-exchange", "must be a string, not signedint"),
        (
            CLASSIC,
            {"x-dead-letter-exchange": ByteArray(b"x")},
            "x-dead-letter-exchange",
            "must be a string, not binary",
        ),
        (
            CLASSIC,
            {"x-dead-letter-routing-key": "k"},
            "x-dead-letter-routing-key",
            "x-dead-letter-exchange must be given with it",
        ),
        (
            CLASSIC,
            {**DLX, "x-dead-letter-routing-key": [1]},
            "x-dead-letter-routing-key",
            "must be a string, not array",
        ),
        (
            QUORUM,
            {"x-dead-letter-strategy": "twice"},
            "x-dead-letter-strategy",
            "must be one of at-most-once, at-least-once, not 'twice'",
        ),
        (CLASSIC, {"x-max-length": -1}, "x-max-length", "must be 0 or more, not -1"),
        (CLASSIC, {"x-max-length-bytes": {}}, "x-max-length-bytes", "must be an integer, not table"),
        (
            CLASSIC,
            {"x-overflow": "spill"},
            "x-overflow",
            "must be one of drop-head, reject-publish, reject-publish-dlx, not 'spill'",
        ),
        (CLASSIC, {"x-overflow": False}, "x-overflow", "must be a string, not bool"),
        (CLASSIC, {"x-max-priority": 256}, "x-max-priority", "must be 0 to 255, not 256"),
        (CLASSIC, {"x-max-priority": -1}, "x-max-priority", "must be 0 to 255, not -1"),
        (
            CLASSIC,
            {"x-single-active-consumer": "true"},
            "x-single-active-consumer",
            "must be true or false, not longstr",
        ),
        (
            CLASSIC,
            {"x-single-active-consumer": 1},
            "x-single-active-consumer",
            "must be true or false, not signedint",
        ),
        (
            CLASSIC,
            {"x-queue-leader-locator": "x"},
            "x-queue-leader-locator",
            "must be one of client-local, balanced, random, least-leaders, min-masters, not 'x'",
        ),
        (CLASSIC, {"x-confirm-when": "sent"}, "x-confirm-when", "must be one of synced, written, not 'sent'"),
        (CLASSIC, {"x-queue-mode": "eager"}, "x-queue-mode", "must be one of default, lazy, not 'eager'"),
        (CLASSIC, {"x-queue-version": 1}, "x-queue-version", "must be 2, not 1"),
        (QUORUM, {"x-delivery-limit": "5"}, "x-delivery-limit", "must be an integer, not longstr"),
        (
            QUORUM,
            {"x-quorum-initial-group-size": 0},
            "x-quorum-initial-group-size",
            "must be 1 or more, not 0",
        ),
        (QUORUM, {"x-consumer-timeout": -1}, "x-consumer-timeout", "must be 0 or more, not -1"),
        (
            QUORUM,
            {"x-delayed-retry-type": "some"},
            "x-delayed-retry-type",
            "must be one of disabled, all, failed, returned, not 'some'",
        ),
        (
            QUORUM,
            {"x-delayed-retry-min": 5, "x-delayed-retry-max": 4},
            "x-delayed-retry-max",
            "must be x-delayed-retry-min, which is 5, or more, not 4",
        ),
        (CLASSIC, {"x-subscription": 1}, "x-subscription", "must be a table, not signedint"),
        (
            CLASSIC,
            {"x-subscription": {"topic": "t", "durable": "yes"}},
            "x-subscription",
            SUBSCRIPTION,
        ),
        (STREAM, {"x-max-age": "7W"}, "x-max-age", MAX_AGE + "'7W'"),
        (STREAM, {"x-max-age": "0D"}, "x-max-age", MAX_AGE + "'0D'"),
        (
            STREAM,
            {"x-stream-filter-size-bytes": 15},
            "x-stream-filter-size-bytes",
            "must be 16 to 255, not 15",
        ),
        (
            STREAM,
            {"x-stream-max-segment-size-bytes": 3_000_000_001},
            "x-stream-max-segment-size-bytes",
            "must be 0 to 3000000000, not 3000000001",
        ),
    ],
)
def test_a_bad_value_is_refused(kind: QueueType, arguments: dict[str, Any], name: str, fault: str) -> None:
    """406 with the argument, what is allowed, and what was given."""
    with pytest.raises(InvalidArgument) as caught:
        queue_settings.check(arguments, kind, Q)
    assert caught.value.description == f"invalid arg '{name}' for {Q}: {fault}"


@pytest.mark.parametrize(
    ("kind", "name", "value", "takers"),
    [
        (CLASSIC, "x-delivery-limit", 5, "quorum"),
        (CLASSIC, "x-dead-letter-strategy", "at-most-once", "quorum"),
        (CLASSIC, "x-quorum-initial-group-size", 3, "quorum"),
        (CLASSIC, "x-max-age", "1D", "stream"),
        (CLASSIC, "x-consumer-timeout", 5, "quorum"),
        (QUORUM, "x-max-priority", 5, "classic"),
        (QUORUM, "x-queue-mode", "lazy", "classic"),
        (QUORUM, "x-confirm-when", "written", "classic"),
        (QUORUM, "x-stream-filter-size-bytes", 16, "stream"),
        (STREAM, "x-expires", 5, "classic or quorum"),
        (STREAM, "x-max-length", 5, "classic or quorum"),
        (STREAM, "x-single-active-consumer", True, "classic or quorum"),
    ],
)
def test_an_argument_of_another_kind_is_refused(kind: QueueType, name: str, value: Any, takers: str) -> None:
    """406 with the kind and those that take it, even if the value is good."""
    with pytest.raises(InvalidArgument) as caught:
        queue_settings.check({name: value}, kind, Q)
    assert caught.value.description == (
        f"invalid arg '{name}' for {Q}: not for a queue of type {kind}, only of type {takers}"
    )


@pytest.mark.parametrize(
    ("received", "current", "text"),
    [
        ({"x-expires": 1}, {"x-expires": 2}, "'x-expires' for QUEUE: received '1' but current is '2'"),
        (
            {},
            {"x-expires": 2},
            "'x-expires' for QUEUE: received none but current is the value '2' of type 'signedint'",
        ),
        (
            {"x-overflow": "drop-head"},
            {},
            "'x-overflow' for QUEUE: received the value 'drop-head' of type 'longstr' but current is none",
        ),
        (
            {"x-max-length": Int8(1)},
            {},
            "'x-max-length' for QUEUE: received the value '1' of type 'byte' but current is none",
        ),
        (
            {"x-single-active-consumer": False},
            {"x-single-active-consumer": True},
            "'x-single-active-consumer' for QUEUE: received 'false' but current is 'true'",
        ),
        (
            {"x-max-length": True},
            {"x-max-length": 1},
            "'x-max-length' for QUEUE: received 'true' but current is '1'",
        ),
    ],
)
def test_a_difference_is_inequivalent(received: dict[str, Any], current: dict[str, Any], text: str) -> None:
    """406 with what was received and what is."""
    with pytest.raises(Inequivalent) as caught:
        queue_settings.assert_equivalent(received, current, CLASSIC, Q)
    assert caught.value.description == "inequivalent arg " + text.replace("QUEUE", Q)


def test_integers_of_different_widths_are_the_same() -> None:
    """A client that sends a short and one that sends a long declare the same queue."""
    assert queue_settings.assert_equivalent({"x-expires": Int8(5)}, {"x-expires": 5}, CLASSIC, Q) is None


@pytest.mark.parametrize("name", ["custom", "x-delivery-limit"])
def test_only_what_the_existing_kind_knows_is_compared(name: str) -> None:
    """Arguments without a meaning for this queue may differ."""
    assert queue_settings.assert_equivalent({name: 5}, {}, CLASSIC, Q) is None
    with pytest.raises(Inequivalent):
        queue_settings.assert_equivalent({"x-delivery-limit": 5}, {}, QUORUM, Q)
