"""RabbitMQ's policy_SUITE and its neighbours, by real clients: each test names the case it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.pika_client import get_all, put, until

pytestmark = pytest.mark.integration

SetPolicy = Callable[..., str]
KINDS = ("classic", "quorum")


@pytest.fixture
def run(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker)


@pytest.fixture
def set_policy(run: CommandLine, queue: str) -> Iterator[SetPolicy]:
    """Sets a policy, or an operator policy, for names that begin as the test's queue; both go after it."""

    def put(definition: dict[str, Any], *options: str, command: str = "set") -> str:
        return run("policy", command, queue, f"^{queue}", json.dumps(definition), *options)

    yield put
    for command in ("clear", "clear-operator"):
        run.done("policy", command, queue)


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
    rows = run.json("queue", "list", "name", "effective_policy_definition")
    found: dict[str, Any] = next(row for row in rows if row["name"] == queue)["effective_policy_definition"]
    return found


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
    set_policy({"expires": 50}, command="set-operator")

    def gone() -> bool:
        channel.connection.process_data_events(0)
        return queue not in [row["name"] for row in run.json("queue", "list")]

    until(channel, gone, "the queue to go")


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
    run("policy", "clear", queue)
    put(channel, queue, "3")
    assert get_all(channel, queue) == ["3"]


# --- streams --------------------------------------------------------------------------------------


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
