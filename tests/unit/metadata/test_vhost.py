"""Queues and exchanges of a virtual host: declarations and arguments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import amqp10broker
from amqp10broker import errors
from amqp10broker.emulation import rules_of
from amqp10broker.metadata import queue_arguments
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.entry_codec import decoded, encoded
from amqp10broker.metadata.plan import Put, VhostLimits
from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.metadata.queue_arguments import ARGUMENTS, QueueType, UnknownQueueType
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.protocols.amqp091.codec import ByteArray, Int8, Timestamp
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.declaring import add_vhost, bind, change_vhost, declare, delete_vhost, remove

LOCKED = (
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on "
    "another connection or the exclusive property value does not match that of the original declaration."
)


def refusal(
    error: type[errors.RefusedError], catalog: Catalog, vhost: VirtualHost, name: str = "q", **properties: Any
) -> str:
    with pytest.raises(error) as caught:
        declare(catalog, vhost, name, **properties)
    assert type(caught.value) is error
    return caught.value.description


def test_a_new_queue_is_durable_classic_and_started_once(
    catalog: Catalog, vhost: VirtualHost, host: Any
) -> None:
    """By default, a queue is durable, shared, and of the node's default type."""
    queue, created = declare(catalog, vhost, "q")
    assert created
    assert (queue.name, queue.vhost, queue.type, queue.durable) == ("q", "/", "classic", True)
    assert not queue.exclusive
    assert not queue.auto_delete
    arguments = {"x-queue-type": "classic"}
    assert host.started == [QueueSpec("/", "q", "classic", True, False, arguments, number=1)]
    assert declare(catalog, vhost, "q") == (queue, False)
    assert len(host.started) == 1


def test_a_removed_queue_is_gone_with_its_bindings(catalog: Catalog, vhost: VirtualHost) -> None:
    queue, _ = declare(catalog, vhost, "q")
    bind(catalog, vhost, Binding("amq.fanout", Destination("queue", "q"), ""))
    assert vhost.route(vhost.topology.lookup_exchange("amq.fanout"), ["k"]) == ([queue], True)
    assert remove(catalog, vhost, "q") is queue
    assert remove(catalog, vhost, "q") is None
    assert vhost.route(vhost.topology.lookup_exchange("amq.fanout"), ["k"])[0] == []
    assert vhost.topology.bindings(destination=Destination("queue", "q")) == []


# --- exclusive ------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
def test_an_exclusive_queue_is_as_declared_and_never_lasts(
    catalog: Catalog, vhost: VirtualHost, durable: bool
) -> None:
    """It ends with its connection, so it is not stored; the declared properties are shown."""
    owner = object()
    queue, _ = declare(catalog, vhost, "q", durable=durable, exclusive_owner=owner)
    assert (queue.durable, queue.exclusive, queue.owner) == (durable, True, owner)
    assert not queue.lasting
    assert queue.number == 0
    assert declare(catalog, vhost, "q", durable=durable, exclusive_owner=owner) == (queue, False)
    with pytest.raises(errors.Inequivalent, match="inequivalent arg 'durable'"):
        declare(catalog, vhost, "q", durable=not durable, exclusive_owner=owner)


def test_a_remembered_route_ends_with_its_queue(catalog: Catalog, vhost: VirtualHost) -> None:
    """This includes a queue without bindings: routes of the default exchange name it."""
    declare(catalog, vhost, "q")
    version = vhost.version
    remove(catalog, vhost, "q")
    assert vhost.version > version


# --- redeclaring ----------------------------------------------------------------------------------


def test_checks_go_exclusive_durable_auto_delete_arguments(catalog: Catalog, vhost: VirtualHost) -> None:
    """The error names the first difference in this order."""
    declare(catalog, vhost, "q", arguments={"x-max-length": 1})
    everything: dict[str, Any] = {"durable": False, "auto_delete": True, "arguments": {"x-max-length": 2}}
    assert refusal(errors.ResourceLocked, catalog, vhost, exclusive_owner=object(), **everything) == LOCKED
    assert "'durable'" in refusal(errors.Inequivalent, catalog, vhost, **everything)
    everything["durable"] = True
    assert "'auto_delete'" in refusal(errors.Inequivalent, catalog, vhost, **everything)
    everything["auto_delete"] = False
    assert "'x-max-length'" in refusal(errors.Inequivalent, catalog, vhost, **everything)


def test_equivalence_is_checked_before_values(catalog: Catalog, vhost: VirtualHost) -> None:
    """A bad argument for an existing queue is a difference."""
    declare(catalog, vhost, "q")
    assert refusal(errors.Inequivalent, catalog, vhost, arguments={"x-expires": -1}) == (
        "inequivalent arg 'x-expires' for queue 'q' in vhost '/': received the value '-1' of type "
        "'signedint' but current is none"
    )


def test_a_missing_type_is_filled_in_before_comparing(catalog: Catalog, vhost: VirtualHost) -> None:
    """A declaration with x-queue-type=classic equals one without, in both orders."""
    declare(catalog, vhost, "a")
    assert not declare(catalog, vhost, "a", arguments={"x-queue-type": "classic"})[1]
    declare(catalog, vhost, "b", arguments={"x-queue-type": "quorum"})
    assert refusal(errors.Inequivalent, catalog, vhost, "b") == (
        "inequivalent arg 'x-queue-type' for queue 'b' in vhost '/': "
        "received 'classic' but current is 'quorum'"
    )


# --- types ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "declare_invalid_arg_2")
def test_an_unknown_type_is_refused(catalog: Catalog, vhost: VirtualHost) -> None:
    assert refusal(UnknownQueueType, catalog, vhost, arguments={"x-queue-type": "x"}) == (
        "invalid arg 'x-queue-type' for queue 'q' in vhost '/': "
        "must be one of classic, quorum, stream, not 'x'"
    )


def test_a_type_that_is_no_string_is_refused(catalog: Catalog, vhost: VirtualHost) -> None:
    assert refusal(errors.InvalidArgument, catalog, vhost, arguments={"x-queue-type": 1}) == (
        "invalid arg 'x-queue-type' for queue 'q' in vhost '/': must be a string, not signedint"
    )


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE",
    "declare_args",
    "declare_max_age",
    "declare_queue",
    "publish",
    "publish_confirm",
    "queue_size_on_declare",
)
def test_a_stream_is_declared_with_its_arguments(catalog: Catalog, vhost: VirtualHost) -> None:
    arguments = {
        "x-queue-type": "stream",
        "x-max-length-bytes": 1000,
        "x-max-age": "7D",
        "x-stream-max-segment-size-bytes": 100,
        "x-stream-filter-size-bytes": 32,
        "x-initial-cluster-size": 1,
        "x-queue-leader-locator": "client-local",
    }
    queue, created = declare(catalog, vhost, "q", arguments=arguments)
    settings = queue.effective.settings
    assert created
    assert queue.type == "stream"
    assert (settings.max_length_bytes, settings.max_age_ms) == (1000, 7 * 24 * 3600 * 1000)
    assert (settings.segment_bytes, settings.filter_bytes) == (100, 32)
    assert declare(catalog, vhost, "q", arguments=arguments) == (queue, False)
    with pytest.raises(errors.Inequivalent, match="inequivalent arg 'x-max-age' for queue 'q' in vhost '/'"):
        declare(catalog, vhost, "q", arguments=arguments | {"x-max-age": "8D"})


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "declare_invalid_properties")
@pytest.mark.parametrize(
    ("properties", "fault"),
    [
        ({"durable": False}, "non-durable"),
        ({"exclusive_owner": object()}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
    ],
)
def test_a_stream_is_always_durable_and_never_for_one_connection(
    catalog: Catalog, vhost: VirtualHost, properties: dict[str, Any], fault: str
) -> None:
    with pytest.raises(
        errors.PreconditionFailed, match=f"invalid property '{fault}' for queue 'q' in vhost '/'"
    ):
        declare(catalog, vhost, "q", arguments={"x-queue-type": "stream"}, **properties)


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "declare_invalid_arg")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-expires", 1000),
        ("x-message-ttl", 1000),
        ("x-dead-letter-exchange", ""),
        ("x-max-length", 10),
        ("x-overflow", "drop-head"),
        ("x-max-priority", 3),
        ("x-single-active-consumer", True),
    ],
)
def test_a_stream_has_none_of_the_features_of_queues(
    catalog: Catalog, vhost: VirtualHost, name: str, value: Any
) -> None:
    text = refusal(errors.InvalidArgument, catalog, vhost, arguments={"x-queue-type": "stream", name: value})
    start = f"invalid arg '{name}' for queue 'q' in vhost '/': not for a queue of type stream, only of type "
    assert text.startswith(start)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "declare_invalid_properties")
@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"exclusive_owner": object()}, "invalid property 'exclusive-owner' for queue 'q' in vhost '/'"),
        ({"auto_delete": True}, "invalid property 'auto-delete' for queue 'q' in vhost '/'"),
        ({"durable": False}, "invalid property 'non-durable' for queue 'q' in vhost '/'"),
        ({"internal": True}, "Cannot declare a server-named queue for type quorum; give it a name"),
    ],
)
def test_a_quorum_queue_cannot_be_so(
    catalog: Catalog, vhost: VirtualHost, properties: dict[str, Any], text: str
) -> None:
    """An explicit request is refused and not turned into a classic queue."""
    assert (
        refusal(errors.PreconditionFailed, catalog, vhost, arguments={"x-queue-type": "quorum"}, **properties)
        == text
    )
    assert vhost.find("q") is None


@pytest.mark.parametrize(
    "properties",
    [{"exclusive_owner": object()}, {"auto_delete": True}, {"durable": False}, {"internal": True}],
)
def test_a_default_type_that_cannot_serve_gives_way_to_classic(
    catalog: Catalog, vhost: VirtualHost, properties: dict[str, Any]
) -> None:
    """The default must not make a request fail that names no type."""
    change_vhost(catalog, vhost, default_queue_type="quorum")
    queue, _ = declare(catalog, vhost, "q", **properties)
    assert queue.type == "classic"
    properties = {key: value for key, value in properties.items() if key != "internal"}
    if properties:
        assert declare(catalog, vhost, "q", **properties) == (queue, False)


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "vhost_with_default_queue_type_declares_quorum_queue",
    "vhost_with_quorum_queue_is_deleted",
)
@pytest.mark.rabbitmq("quorum_queue_SUITE", "node_wide_default_queue_type_declares_quorum_queue")
@pytest.mark.rabbitmq("vhost_SUITE", "vhost_is_created_with_default_queue_type")
def test_the_virtual_hosts_default_type_is_before_the_nodes(host: Any) -> None:
    """The order is argument, virtual host, node."""
    catalog = Catalog(host.start_queue, default_queue_type="quorum")
    vhost = catalog.vhosts["/"]
    assert declare(catalog, vhost, "a")[0].type == "quorum"
    change_vhost(catalog, vhost, default_queue_type="classic")
    assert declare(catalog, vhost, "b")[0].type == "classic"
    assert declare(catalog, vhost, "c", arguments={"x-queue-type": "quorum"})[0].arguments == {
        "x-queue-type": "quorum"
    }


@pytest.mark.rabbitmq("rabbitmq_4_0_deprecations_SUITE", "when_transient_nonexcl_is_permitted_from_conf")
def test_transient_shared_queues_are_accepted(catalog: Catalog, vhost: VirtualHost) -> None:
    """An operator may deny them: queues of older Celery are transient and shared."""
    queue, created = declare(catalog, vhost, "q", durable=False)
    assert created
    assert not queue.durable


# --- limits and the end ---------------------------------------------------------------------------


@pytest.mark.rabbitmq("per_vhost_queue_limit_SUITE", "single_node_multiple_vhosts_queue_count")
@pytest.mark.rabbitmq(
    "per_vhost_queue_limit_SUITE",
    "single_node_single_vhost_limit",
    "single_node_single_vhost_limit_with_redeclaration",
)
@pytest.mark.rabbitmq(
    "per_vhost_queue_limit_SUITE",
    "most_basic_single_node_queue_count",
    "single_node_single_vhost_limit_with_queue_ttl",
    "single_node_single_vhost_queue_count",
)
def test_the_queue_limit_refuses_one_too_many(catalog: Catalog, vhost: VirtualHost) -> None:
    """An existing queue can still be declared again, and a deleted queue makes room."""
    change_vhost(catalog, vhost, limits=VhostLimits(max_queues=1))
    declare(catalog, vhost, "a")
    assert not declare(catalog, vhost, "a")[1]
    assert refusal(errors.LimitExceeded, catalog, vhost) == (
        "cannot declare queue 'q': queue limit in vhost '/' (1) is reached"
    )
    remove(catalog, vhost, "a")
    assert declare(catalog, vhost, "q")[1]


def test_nothing_is_declared_in_a_deleted_virtual_host(catalog: Catalog) -> None:
    """A session that still refers to it must not make unreachable queues."""
    vhost = add_vhost(catalog, "v")
    delete_vhost(catalog, "v")
    assert refusal(errors.NotFound, catalog, vhost) == "vhost v not found"


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "relaxed_argument_equivalence_checks_on_qq_redeclare",
    note="setting `quorum_relaxed_checks_on_redeclaration`",
)
def test_a_quorum_queue_may_be_declared_again_as_a_classic_one_if_that_is_permitted(
    catalog: Catalog, host: Any
) -> None:
    """Properties that both kinds have are compared."""
    strict, relaxed = (Catalog(host.start_queue, relaxed_quorum_checks=choice) for choice in (False, True))
    first = {"x-queue-type": "quorum", "x-max-length": 5, "x-delivery-limit": 3}
    again = {"x-queue-type": "classic", "x-max-length": 5}
    queues = [declare(catalog, "/", "q", arguments=first)[0] for catalog in (strict, relaxed)]
    here = relaxed.lookup_vhost("/")

    def differs(name: str = "q", **properties: Any) -> str:
        return refusal(errors.Inequivalent, relaxed, here, name, **properties)

    assert "'x-queue-type'" in refusal(errors.Inequivalent, strict, strict.lookup_vhost("/"), arguments=again)
    assert declare(relaxed, here, "q", arguments=again) == (queues[1], False)
    assert declare(relaxed, here, "q", arguments={"x-max-length": 5}) == (queues[1], False), "by default"
    assert "'x-max-length'" in differs(arguments={"x-queue-type": "classic"})
    assert "'durable'" in differs(durable=False, arguments=again)
    assert "'x-delivery-limit'" in differs(arguments={**again, "x-queue-type": "quorum"})
    declare(relaxed, here, "c", arguments={"x-queue-type": "classic"})
    assert "'x-queue-type'" in differs("c", arguments={"x-queue-type": "quorum"})


def test_members_apply_the_rules_of_the_version_at_the_declaring_node(host: Any) -> None:
    """Its entry has them; a node that emulates another version derives the same settings from it."""
    here, there = Catalog(host.start_queue, rules=rules_of("4.3")), Catalog(host.start_queue)
    declare(here, "/", "q", arguments={"x-queue-type": "quorum"})
    declare(here, "/", "classic")
    for name, levels in (("q", 32), ("classic", 2)):
        key = ("queue", "/", name)
        entry = json.loads(json.dumps(encoded(key, here.lookup_vhost("/").lookup(name).spec)))
        there.apply([Put(key, decoded(key, entry))])
        queue = there.lookup_vhost("/").lookup(name)
        assert queue.effective == here.lookup_vhost("/").lookup(name).effective
        assert queue.effective.settings.priority_levels == levels
        assert ("rules" in entry) == (name == "q")


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
        (CLASSIC, {**DLX, "x-dead-letter-routing-key": "k"}),
        (CLASSIC, {"x-max-priority": 255}),
        (QUORUM, {"x-single-active-consumer": True}),
        (CLASSIC, {"x-queue-master-locator": "min-masters"}),
        (CLASSIC, {"x-queue-mode": "lazy", "x-queue-version": 2}),
        (QUORUM, {"x-quorum-initial-group-size": 3, "x-quorum-target-group-size": 5}),
        (QUORUM, {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 5, "x-delayed-retry-max": 5}),
        (STREAM, {"x-max-age": "7D", "x-stream-max-segment-size-bytes": 0, "x-initial-cluster-size": 1}),
        (CLASSIC, {"x-nobody-knows": object(), "custom": None}),
    ],
)
def test_good_arguments_are_accepted(kind: QueueType, arguments: dict[str, Any]) -> None:
    """These are values within range, and names that no kind of queue uses. Ranges are those of the keys of
    policies: `test_policies.test_each_setting_is_checked` has those of all settings that have a key.
    """
    queue_arguments.check(arguments, kind, Q)
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
    ("kind", "arguments", "fault"),
    [
        (CLASSIC, {"x-expires": 0}, "must be 1 to 315360000000, not 0"),
        (CLASSIC, {"x-expires": -5}, "must be 1 to 315360000000, not -5"),
        (CLASSIC, {"x-expires": 315_360_000_001}, "must be 1 to 315360000000, not 315360000001"),
        (CLASSIC, {"x-expires": "10"}, "must be an integer, not longstr"),
        (CLASSIC, {"x-expires": True}, "must be an integer, not bool"),
        (CLASSIC, {"x-expires": 1.0}, "must be an integer, not double"),
        (CLASSIC, {"x-expires": Timestamp(1)}, "must be an integer, not timestamp"),
        (CLASSIC, {"x-expires": None}, "must be an integer, not void"),
        (CLASSIC, {"x-dead-letter-exchange": 1}, "must be a string, not signedint"),
        (CLASSIC, {"x-dead-letter-exchange": ByteArray(b"x")}, "must be a string, not binary"),
        (CLASSIC, {"x-dead-letter-routing-key": "k"}, "x-dead-letter-exchange must be given with it"),
        (CLASSIC, {**DLX, "x-dead-letter-routing-key": [1]}, "must be a string, not array"),
        (CLASSIC, {"x-overflow": False}, "must be a string, not bool"),
        (CLASSIC, {"x-max-priority": 256}, "must be 0 to 255, not 256"),
        (CLASSIC, {"x-max-priority": -1}, "must be 0 to 255, not -1"),
        (CLASSIC, {"x-single-active-consumer": "true"}, "must be true or false, not longstr"),
        (CLASSIC, {"x-single-active-consumer": 1}, "must be true or false, not signedint"),
        (CLASSIC, {"x-confirm-when": "sent"}, "must be one of synced, written, not 'sent'"),
        (CLASSIC, {"x-queue-version": 1}, "must be 2, not 1"),
        (QUORUM, {"x-quorum-initial-group-size": 0}, "must be 1 or more, not 0"),
        (
            QUORUM,
            {"x-delayed-retry-min": 5, "x-delayed-retry-max": 4},
            "must be x-delayed-retry-min, which is 5, or more, not 4",
        ),
        (CLASSIC, {"x-subscription": 1}, "must be a table, not signedint"),
        (CLASSIC, {"x-subscription": {"topic": "t", "durable": "yes"}}, SUBSCRIPTION),
        (STREAM, {"x-max-age": "7W"}, MAX_AGE + "'7W'"),
    ],
)
def test_a_bad_value_is_refused(kind: QueueType, arguments: dict[str, Any], fault: str) -> None:
    """The reply is 406 with the last of the arguments, the allowed values and the given one."""
    with pytest.raises(errors.InvalidArgument) as caught:
        queue_arguments.check(arguments, kind, Q)
    assert caught.value.description == f"invalid arg '{[*arguments][-1]}' for {Q}: {fault}"


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
    """The reply is 406 with the kind and those that take it, even if the value is good."""
    with pytest.raises(errors.InvalidArgument) as caught:
        queue_arguments.check({name: value}, kind, Q)
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
    with pytest.raises(errors.Inequivalent) as caught:
        queue_arguments.assert_equivalent(received, current, CLASSIC, Q)
    assert caught.value.description == "inequivalent arg " + text.replace("QUEUE", Q)


def test_integers_of_different_widths_are_the_same() -> None:
    """A client that sends a short and one that sends a long declare the same queue."""
    assert queue_arguments.assert_equivalent({"x-expires": Int8(5)}, {"x-expires": 5}, CLASSIC, Q) is None


@pytest.mark.parametrize("name", ["custom", "x-delivery-limit"])
def test_only_what_the_existing_kind_knows_is_compared(name: str) -> None:
    """Arguments without a meaning for this queue may differ."""
    assert queue_arguments.assert_equivalent({name: 5}, {}, CLASSIC, Q) is None
    with pytest.raises(errors.Inequivalent):
        queue_arguments.assert_equivalent({"x-delivery-limit": 5}, {}, QUORUM, Q)


PACKAGE = Path(amqp10broker.__file__).parent
READS_WHAT_A_CONSUMER_ASKS_FOR = {"sessions/amqp10/attach.py", "sessions/amqp091/consuming.py"}


@pytest.mark.parametrize("room", ["sessions", "operations"])
def test_a_kind_is_asked_for_where_its_arguments_are_read_and_nowhere_else(room: str) -> None:
    compares = re.compile(r"\bqueue\.type (==|!=|is|in|not)|QueueType\.|\bVOLATILE\b")
    asking = {
        str(path.relative_to(PACKAGE))
        for path in (PACKAGE / room).rglob("*.py")
        if compares.search(path.read_text())
    }
    assert asking <= READS_WHAT_A_CONSUMER_ASKS_FOR
