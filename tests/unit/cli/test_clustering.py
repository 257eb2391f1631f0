"""Commands of a cluster: what is asked, RabbitMQ's columns and exit codes, and JSON."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.cli import admin, main

ROWS = [{"vhost": "/", "name": "q", "size": 3, "result": "ok"}]
CHECK = {"result": "ok", "message": "all is well"}


class Broker:
    """Answers each request with the same, or refuses it."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answer: Any = None

    def ask(self, place: admin.Place, request: Any) -> Any:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(admin, "ask", broker.ask)
    return broker


@pytest.mark.parametrize(
    ("written", "operation", "given", "answer"),
    [
        (
            ["member", "add", "q", "b", "--membership", "voter", "--timeout", "9"],
            "add-member",
            {"name": "q", "node": "b", "membership": "voter", "timeout": 9},
            {"added": True, "size": 2},
        ),
        (
            ["member", "grow", "b", "even", "--queue-pattern", "^q"],
            "grow",
            {
                "node": "b",
                "strategy": "even",
                "vhost_pattern": ".*",
                "queue_pattern": "^q",
                "membership": "promotable",
                "errors_only": False,
            },
            ROWS,
        ),
        (["member", "shrink", "b", "--errors-only"], "shrink", {"node": "b", "errors_only": True}, ROWS),
        (["queue", "stream-status", "s"], "stream-status", {"name": "s"}, [{"role": "leader", "node": "a"}]),
        (
            ["member", "rebalance", "quorum"],
            "rebalance",
            {"kind": "quorum", "vhost_pattern": ".*", "queue_pattern": ".*"},
            [{"Node name": "a", "Number of quorum queues": 1, "Number of streams": 0}],
        ),
        (["cluster", "drain"], "drain", {}, {"draining": True}),
        (["check", "quorum-critical"], "check-if-node-is-quorum-critical", {}, CHECK),
        (
            ["check", "leaders", "--across-all-vhosts", "x"],
            "check-for-quorum-queues-without-an-elected-leader",
            {"pattern": "x", "vhost": None, "across_all_vhosts": True},
            CHECK,
        ),
        (["check", "quorum-plus-one"], "await-online-quorum-plus-one", {"timeout": 120}, CHECK),
        (
            ["member", "force-shrink-all", "--vhost-pattern", "^v$"],
            "force-all-queues-shrink-member-to-current-member",
            {"vhost_pattern": "^v$", "queue_pattern": ".*", "errors_only": False},
            [{"vhost": "v", "name": "q", "size": 1, "result": "ok"}],
        ),
    ],
)
def test_a_command_requests_its_operation(
    broker: Broker, written: list[str], operation: str, given: dict[str, Any], answer: Any
) -> None:
    broker.answer = answer
    assert main.main(written) == 0
    assert broker.requests == [{"op": operation, "arguments": given}]


@pytest.mark.parametrize(
    "written",
    [
        ["cluster", "status", "--bogus"],
        ["cluster", "forget-node"],
        ["member", "grow", "b", "odd"],
        ["cluster", "await-online-nodes", "many"],
        ["cluster", "await-online-nodes", "0"],
    ],
)
def test_what_is_typed_wrongly_is_code_64(broker: Broker, written: list[str]) -> None:
    """T17: also where another command has 2."""
    try:
        code: object = main.main(written)
    except SystemExit as ended:
        code = ended.code
    assert code == 64
    assert not broker.requests
    with pytest.raises(SystemExit) as other:
        main.main(["queue", "list", "--bogus"])
    assert other.value.code == 2


@pytest.mark.parametrize(
    ("written", "answer", "said"),
    [
        (
            ["cluster", "join", "a"],
            {"node": "a", "joined": False},
            "The node is already a member of this cluster",
        ),
        (
            ["cluster", "join", "a=h:1"],
            {"node": "a", "joined": True},
            "the node joins the cluster of node 'a'",
        ),
        (
            ["cluster", "reset"],
            {"node": "d", "failed": []},
            "node 'd' is out of the cluster, has no data any more",
        ),
        (["cluster", "force-reset"], {"node": "d", "failed": []}, "cluster forget-node d"),
    ],
)
def test_coming_and_going_is_told(
    broker: Broker, capsys: pytest.CaptureFixture[str], written: list[str], answer: Any, said: str
) -> None:
    broker.answer = answer
    assert main.main(written) == 0
    assert said in capsys.readouterr().out
