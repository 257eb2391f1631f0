"""RabbitMQ's policy_SUITE and its neighbours, by real clients: each test names the case it is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ConnectionClosedByBroker, NackError

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.pika_client import get_all, put, settle_down, until

pytestmark = pytest.mark.integration

SetPolicy = Callable[..., str]
KINDS = ("classic", "quorum")


@pytest.fixture
def run(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker)


@pytest.fixture
def set_policy(run: CommandLine, queue: str) -> Iterator[SetPolicy]:
    """Sets a policy, or an operator policy, for names that begin as the test's queue; both go after it."""

    def put(definition: dict[str, Any], *options: str, command: str = "set-policy") -> str:
        return run(command, queue, f"^{queue}", json.dumps(definition), *options)

    yield put
    for command in ("clear-policy", "clear-operator-policy"):
        run.done(command, queue)


def declare(channel: BlockingChannel, queue: str, kind: str = "classic", **arguments: Any) -> None:
    """A durable queue of a kind."""
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind} | given)


def ready(channel: BlockingChannel, queue: str) -> int:
    """Messages that wait in a queue."""
    count = channel.queue_declare(queue, passive=True).method.message_count
    assert count is not None
    return int(count)


def effective(run: CommandLine, queue: str) -> dict[str, Any]:
    """What its policies set."""
    rows = run.json("list-queues", "name", "effective_policy_definition")
    found: dict[str, Any] = next(row for row in rows if row["name"] == queue)["effective_policy_definition"]
    return found


def texts(first: int, last: int) -> list[str]:
    """Bodies."""
    return [str(number) for number in range(first, last + 1)]


@pytest.mark.rabbitmq("policy_SUITE", "operator_policy_ttl", "policy_ttl")
@pytest.mark.parametrize("command", ["set-policy", "set-operator-policy"])
def test_a_ttl_of_a_policy(command: str, set_policy: SetPolicy, channel: BlockingChannel, queue: str) -> None:
    """policy_ttl, operator_policy_ttl: messages published behind it expire."""
    declare(channel, queue)
    set_policy({"message-ttl": 20}, command=command)
    put(channel, queue, *texts(1, 50))
    until(channel, lambda: ready(channel, queue) == 0, "all messages to expire")


@pytest.mark.rabbitmq("policy_SUITE", "operator_policy_ttl")
def test_a_smaller_ttl_of_the_operator_counts(
    set_policy: SetPolicy, channel: BlockingChannel, queue: str
) -> None:
    """operator_policy_ttl: the policy's own would let them live for hours."""
    declare(channel, queue)
    set_policy({"message-ttl": 3_600_000})
    set_policy({"message-ttl": 1}, command="set-operator-policy")
    put(channel, queue, "1")
    until(channel, lambda: ready(channel, queue) == 0, "the message to expire")


@pytest.mark.rabbitmq(
    "policy_SUITE", "operator_retroactive_policy_publish_ttl", "operator_retroactive_policy_ttl"
)
@pytest.mark.rabbitmq("quorum_queue_SUITE", "message_ttl_policy")
def test_a_ttl_is_for_messages_published_behind_it(
    set_policy: SetPolicy, channel: BlockingChannel, queue: str
) -> None:
    """operator_retroactive_policy_ttl, operator_retroactive_policy_publish_ttl: those that were there stay,
    and as long as they are there, those behind them stay in the queue, too, and are not delivered."""
    declare(channel, queue)
    put(channel, queue, *texts(1, 5))
    settle_down(channel)
    set_policy({"message-ttl": 1}, command="set-operator-policy")
    put(channel, queue, *texts(6, 9))
    declare(channel, f"{queue}-after")
    put(channel, f"{queue}-after", "x")
    until(channel, lambda: ready(channel, f"{queue}-after") == 0, "the other queue's message to expire")
    time.sleep(0.002)  # queues count whole ms: it was over for that one, and for these it has to be past
    channel.queue_delete(f"{queue}-after")
    assert get_all(channel, queue) == texts(1, 5)


@pytest.mark.rabbitmq(
    "per_vhost_queue_limit_SUITE",
    "single_node_single_vhost_limit_with_queue_ttl",
    note="the queue that went is not counted",
)
@pytest.mark.rabbitmq("policy_SUITE", "is_supported_operator_policy_expires")
@pytest.mark.parametrize("kind", KINDS)
def test_expires_of_a_policy_deletes_the_queue(
    kind: str, run: CommandLine, set_policy: SetPolicy, channel: BlockingChannel, queue: str
) -> None:
    """is_supported_operator_policy_expires: a queue that nobody uses goes."""
    declare(channel, queue, kind)
    set_policy({"expires": 50}, command="set-operator-policy")

    def gone() -> bool:
        channel.connection.process_data_events(0)
        return queue not in [row["name"] for row in run.json("list-queues")]

    until(channel, gone, "the queue to go")


@pytest.mark.rabbitmq(
    "policy_SUITE",
    "is_supported_operator_policy_delivery_limit",
    "is_supported_operator_policy_expires",
    "is_supported_operator_policy_max_in_memory_bytes",
    "is_supported_operator_policy_max_in_memory_length",
    "is_supported_operator_policy_max_length",
    "is_supported_operator_policy_message_ttl",
    "is_supported_operator_policy_overflow",
    "is_supported_operator_policy_target_group_size",
)
@pytest.mark.rabbitmq("quorum_queue_SUITE", "invalid_policy")
@pytest.mark.parametrize("kind", KINDS)
def test_what_operators_may_set(kind: str, run: CommandLine, channel: BlockingChannel, queue: str) -> None:
    """is_supported_operator_policy_*: what the kind of queue knows is in its effective definition."""
    of_both: dict[str, Any] = {
        "message-ttl": 100_000,
        "expires": 100_000,
        "max-length": 100,
        "max-length-bytes": 100,
        "overflow": "reject-publish",
    }
    of_quorum = {
        "delivery-limit": 3,
        "max-in-memory-length": 100,
        "max-in-memory-bytes": 100,
        "target-group-size": 3,
    }
    declare(channel, queue, kind)
    done = run.done("set-operator-policy", queue, f"^{queue}", json.dumps(of_both | of_quorum))
    try:
        assert done.returncode == 0
        assert effective(run, queue) == (of_both | of_quorum if kind == "quorum" else of_both)
        complaint = "" if kind == "quorum" else f"warning: {', '.join(sorted(of_quorum))}: without effect"
        assert done.stderr.decode().startswith(complaint)
        assert bool(done.stderr) is bool(complaint)
    finally:
        run("clear-operator-policy", queue)


@pytest.mark.rabbitmq("policy_SUITE", "overflow_policies")
@pytest.mark.rabbitmq("unit_policy_validators_SUITE", "length_limit_overflow_mode")
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx"])
def test_overflow_of_a_policy(
    overflow: str, run: CommandLine, set_policy: SetPolicy, channel: BlockingChannel, queue: str
) -> None:
    """overflow_policies, length_limit_overflow_mode: each word acts."""
    declare(channel, queue)
    set_policy({"overflow": overflow, "max-length": 1})
    assert effective(run, queue) == {"overflow": overflow, "max-length": 1}
    put(channel, queue, "1", "2")
    assert get_all(channel, queue) == (["2"] if overflow == "drop-head" else ["1"])


@pytest.mark.rabbitmq("policy_SUITE", "queue_type_specific_policies")
def test_policies_for_one_kind_of_queue(run: CommandLine, channel: BlockingChannel, queue: str) -> None:
    """queue_type_specific_policies: of four policies the one for the kind counts, by its priority."""
    names = {kind: f"{queue}-{kind}" for kind in (*KINDS, "stream")}
    for kind, name in names.items():
        declare(channel, name, kind)
    policies = (
        ("all", "all", 1, 0),
        ("c", "classic_queues", 2, 1),
        ("q", "quorum_queues", 3, 1),
        ("s", "streams", 4, 1),
    )
    try:
        for suffix, apply_to, length, priority in policies:
            definition = json.dumps({"max-length-bytes": length})
            options = ("--apply-to", apply_to, "--priority", str(priority))
            run("set-policy", f"{queue}-{suffix}", f"^{queue}", definition, *options)
        assert [effective(run, name)["max-length-bytes"] for name in names.values()] == [2, 3, 4]
        run("clear-policy", f"{queue}-q")
        assert effective(run, names["quorum"]) == {"max-length-bytes": 1}
    finally:
        for suffix, *_ in policies:
            run.done("clear-policy", f"{queue}-{suffix}")
        for name in names.values():
            channel.queue_delete(name)


@pytest.mark.rabbitmq("policy_SUITE", "classic_queue_version_policies")
def test_the_version_of_classic_queues(
    run: CommandLine, set_policy: SetPolicy, channel: BlockingChannel, queue: str
) -> None:
    """classic_queue_version_policies: the operator's counts; there is one way to store messages here."""
    declare(channel, queue)
    set_policy({"queue-version": 1})
    set_policy({"queue-version": 2}, command="set-operator-policy")
    assert effective(run, queue) == {"queue-version": 2}


@pytest.mark.rabbitmq("confirms_rejects_SUITE", "policy_resets_to_default")
def test_a_policy_that_goes_resets_to_the_default(
    run: CommandLine, set_policy: SetPolicy, channel: BlockingChannel, queue: str
) -> None:
    """confirms_rejects_SUITE policy_resets_to_default: rejected under the policy, drop-head without it."""
    declare(channel, queue, max_length=1)
    channel.confirm_delivery()
    set_policy({"overflow": "reject-publish"})
    put(channel, queue, "1")
    with pytest.raises(NackError):
        put(channel, queue, "2")
    run("clear-policy", queue)
    put(channel, queue, "3")
    assert get_all(channel, queue) == ["3"]


@pytest.mark.rabbitmq("confirms_rejects_SUITE", "confirms_rejects_conflict")
def test_one_full_queue_of_two_rejects(channel: BlockingChannel, queue: str) -> None:
    """confirms_rejects_SUITE confirms_rejects_conflict: one takes the message, one is full: nack."""
    full, other = f"{queue}-full", f"{queue}-other"
    declare(channel, full, max_length=1, overflow="reject-publish")
    declare(channel, other)
    channel.exchange_declare(queue, "fanout")
    try:
        for name in (full, other):
            channel.queue_bind(name, queue)
        channel.confirm_delivery()
        channel.basic_publish(queue, "", b"1")
        with pytest.raises(NackError):
            channel.basic_publish(queue, "", b"2")
        assert get_all(channel, full) == ["1"]
        assert get_all(channel, other) == ["1", "2"]
    finally:
        channel.exchange_delete(queue)


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE",
    "initial_cluster_size_one_policy",
    "leader_locator_policy",
    "max_age_policy",
    "max_segment_size_bytes_policy",
)
def test_settings_of_streams(
    run: CommandLine, set_policy: SetPolicy, channel: BlockingChannel, queue: str
) -> None:
    """rabbit_stream_queue_SUITE max_age_policy, max_segment_size_bytes_policy, leader_locator_policy,
    initial_cluster_size_one_policy: in the effective definition; nothing of it is without effect."""
    declare(channel, queue, "stream")
    definition = {
        "max-age": "2Y",
        "stream-max-segment-size-bytes": 5_000,
        "queue-leader-locator": "balanced",
        "initial-cluster-size": 1,
    }
    set_policy(definition, "--apply-to", "streams")
    assert effective(run, queue) == definition


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "max_segment_size_bytes_policy_validation")
def test_a_segment_has_a_largest_size(run: CommandLine, queue: str) -> None:
    """max_segment_size_bytes_policy_validation: more than 3 GB is refused."""
    complaint = run.fails(1, "set-policy", queue, ".*", '{"stream-max-segment-size-bytes": 3000000001}')
    assert complaint.endswith("'stream-max-segment-size-bytes' is 3000000001; must be at most 3000000000")


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "invalid_policy")
def test_settings_that_streams_do_not_know(run: CommandLine, channel: BlockingChannel, queue: str) -> None:
    """rabbit_stream_queue_SUITE invalid_policy: named, and without effect."""
    declare(channel, queue, "stream")
    definition = json.dumps({"max-length": 1, "message-ttl": 1, "max-age": "1D"})
    done = run.done("set-policy", queue, f"^{queue}", definition, "--apply-to", "streams")
    try:
        assert done.stderr.decode().startswith("warning: max-length, message-ttl: without effect")
        assert effective(run, queue) == {"max-age": "1D"}
    finally:
        run("clear-policy", queue)


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "update_retention_policy")
def test_retention_by_policy_acts_on_a_stream_that_is_there(
    run: CommandLine, set_policy: SetPolicy, channel: BlockingChannel, queue: str
) -> None:
    """update_retention_policy: what is too much goes, whole segments from the head; the policy's number
    counts, whatever the argument's is."""
    declare(channel, queue, "stream", max_length_bytes=3_000_000_000, stream_max_segment_size_bytes=2_000)
    channel.confirm_delivery()
    put(channel, queue, *("x" * 500 for _ in range(40)))
    assert ready(channel, queue) == 40
    set_policy({"max-length-bytes": 4_000, "stream-max-segment-size-bytes": 2_000})
    put(channel, queue, *("x" * 500 for _ in range(10)))
    assert 1 <= ready(channel, queue) < 30


def test_global_qos_is_not_for_streams(channel: BlockingChannel, queue: str) -> None:
    """540, as for quorum queues."""
    declare(channel, queue, "stream")
    channel.basic_qos(prefetch_count=5, global_qos=True)
    with pytest.raises(ConnectionClosedByBroker, match="does not support global qos"):
        channel.basic_consume(queue, lambda *_: None)
