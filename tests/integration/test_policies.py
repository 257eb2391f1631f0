"""Policies set by command act on queues and exchanges that clients use, and no more when they are cleared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.pika_client import get_all, put

pytestmark = pytest.mark.integration

SetPolicy = Callable[..., str]


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


@pytest.fixture
def confirming(channel: BlockingChannel) -> BlockingChannel:
    """A channel that hears of each publish."""
    channel.confirm_delivery()
    return channel


def shown(run: CommandLine, queue: str) -> dict[str, Any]:
    """What `queue list` says of a queue."""
    columns = ("name", "policy", "operator_policy", "effective_policy_definition", "messages_ready")
    return next(row for row in run.json("queue", "list", *columns) if row["name"] == queue)


def test_a_length_limit_comes_and_goes(
    run: CommandLine, set_policy: SetPolicy, channel: BlockingChannel, queue: str
) -> None:
    """Drop-head: the oldest go; without the policy everything stays again."""
    channel.queue_declare(queue, durable=True)
    said = set_policy({"max-length": 2, "overflow": "drop-head"}, "--apply-to", "queues")
    assert said == f"policy '{queue}' set; it counts for 1 queue and 0 exchanges\n"
    put(channel, queue, "1", "2", "3")
    assert get_all(channel, queue) == ["2", "3"]
    assert shown(run, queue)["policy"] == queue
    assert run("policy", "clear", queue) == f"policy '{queue}' cleared\n"
    assert shown(run, queue)["effective_policy_definition"] == {}
    put(channel, queue, "1", "2", "3")
    assert get_all(channel, queue) == ["1", "2", "3"]


def test_an_alternate_exchange_by_policy_gets_what_has_no_way(
    run: CommandLine, set_policy: SetPolicy, confirming: BlockingChannel, queue: str
) -> None:
    """On an exchange that is in use, at once, and no more when the policy is cleared."""
    confirming.queue_declare(queue, durable=True)
    confirming.exchange_declare(f"{queue}-x", "direct")
    confirming.exchange_declare(f"{queue}-ae", "fanout")
    confirming.queue_bind(queue, f"{queue}-ae")

    def publish(text: str) -> None:
        confirming.basic_publish(f"{queue}-x", "nowhere", text.encode(), mandatory=True)

    try:
        with pytest.raises(UnroutableError):
            publish("1")
        set_policy({"alternate-exchange": f"{queue}-ae"}, "--apply-to", "exchanges")
        publish("2")
        assert get_all(confirming, queue) == ["2"]
        rows = run.json("exchange", "list", "name", "policy")
        assert {"name": f"{queue}-x", "policy": queue} in rows
        run("policy", "clear", queue)
        with pytest.raises(UnroutableError):
            publish("3")
    finally:
        confirming.exchange_delete(f"{queue}-x")
        confirming.exchange_delete(f"{queue}-ae")


def test_the_examples_of_the_documentation_work(run: CommandLine) -> None:
    """The examples are those of quorum queues, as commands of this program."""
    overrides = ("qq-overrides", r"^qq\.", '{"delivery-limit": 50}')
    options = ("--priority", "123", "--apply-to", "quorum_queues")
    try:
        run("policy", "set", *overrides, *options)
        run("policy", "set", "qq-unlimited", r"^qq\.unlimited", '{"delivery-limit": -1}', *options)
        (row, unlimited) = (
            row for row in run.json("policy", "list") if row["name"] in ("qq-overrides", "qq-unlimited")
        )
        assert row == {
            "name": "qq-overrides",
            "pattern": r"^qq\.",
            "apply_to": "quorum_queues",
            "definition": {"delivery-limit": 50},
            "priority": 123,
        }
        assert unlimited["definition"] == {"delivery-limit": -1}
        dead_letters = '{"delivery-limit": 50, "dead-letter-exchange": "redeliveries.limit.dlx"}'
        run("policy", "set", *overrides[:2], dead_letters, *options)
    finally:
        run.done("policy", "clear", "qq-overrides")
        run.done("policy", "clear", "qq-unlimited")


def test_a_mistake_is_refused_with_what_is_allowed(run: CommandLine, queue: str) -> None:
    """And nothing is set."""
    complaint = run.fails(1, "policy", "set", queue, ".*", '{"overflow": "drop-tail"}')
    assert complaint == (
        f"the broker refuses: policy '{queue}': 'overflow' is 'drop-tail'; must be one of drop-head, "
        "reject-publish, reject-publish-dlx"
    )
    complaint = run.fails(1, "policy", "set", queue, ".*", '{"max-lenght": 5}')
    assert (
        f"policy '{queue}': 'max-lenght' is not recognised as a setting of policies; did you mean max-length?"
        in complaint
    )
    assert run.fails(1, "policy", "clear", queue) == f"the broker refuses: no policy '{queue}'"
    assert queue not in [row["name"] for row in run.json("policy", "list")]
