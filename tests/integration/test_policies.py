"""Policies set by command act on queues and exchanges that clients use, and no more when they are cleared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.command_line import CommandLine
from tests.support.pika_client import get_all, put

pytestmark = pytest.mark.integration

SetPolicy = Callable[..., str]


@pytest.fixture
def set_policy(run: CommandLine, queue: str) -> Iterator[SetPolicy]:
    """Sets a policy, or an operator policy, for names that begin as the test's queue; both go after it."""

    def put(definition: dict[str, Any], *options: str, command: str = "set") -> str:
        return run("policy", command, queue, f"^{queue}", json.dumps(definition), *options)

    yield put
    for command in ("clear", "clear-operator"):
        run.done("policy", command, queue)


def shown(run: CommandLine, queue: str) -> dict[str, Any]:
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
