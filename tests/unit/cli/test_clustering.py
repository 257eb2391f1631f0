"""Commands of a cluster: what is asked, RabbitMQ's columns and exit codes, and JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amqp10broker.cli import admin, main
from amqp10broker.cli.exits import RefusedByBroker

ROWS = [{"vhost": "/", "name": "q", "size": 3, "result": "ok"}]
FAILED = [*ROWS, {"vhost": "/", "name": "r", "size": "?", "result": "error: it took too long"}]
CHECK = {"result": "ok", "message": "all is well"}
BAD_CHECK = {"result": "error", "message": "q is critical", "queues": [{"name": "q"}]}


class Broker:
    """Answers each request with the same, or refuses it."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answer: Any = None

    def ask(self, place: admin.Place, request: Any) -> Any:
        """As `admin.ask`."""
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Instead of a running one."""
    broker = Broker()
    monkeypatch.setattr(admin, "ask", broker.ask)
    return broker


@pytest.mark.parametrize(
    ("written", "operation", "given", "answer"),
    [
        (
            ["add-member", "q", "b", "--membership", "voter", "--timeout", "9"],
            "add-member",
            {"name": "q", "node": "b", "membership": "voter", "timeout": 9},
            {"added": True, "size": 2},
        ),
        (
            ["delete-member", "q", "b"],
            "delete-member",
            {"name": "q", "node": "b", "timeout": 5},
            {"deleted": True, "size": 2},
        ),
        (
            ["grow", "b", "even", "--queue-pattern", "^q"],
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
        (["shrink", "b", "--errors-only"], "shrink", {"node": "b", "errors_only": True}, ROWS),
        (["stream-status", "s"], "stream-status", {"name": "s"}, [{"role": "leader", "node": "a"}]),
        (["add-replica", "s", "b"], "add-replica", {"name": "s", "node": "b"}, {"added": False, "size": 1}),
        (
            ["delete-replica", "s", "b"],
            "delete-replica",
            {"name": "s", "node": "b"},
            {"deleted": False, "size": 1},
        ),
        (
            ["restart-stream", "s", "--preferred-leader", "a"],
            "restart-stream",
            {"name": "s", "preferred_leader": "a"},
            {"leader": "a"},
        ),
        (
            ["transfer-leadership", "q", "b"],
            "transfer-leadership",
            {"name": "q", "node": "b"},
            {"leader": "b"},
        ),
        (
            ["rebalance", "quorum"],
            "rebalance",
            {"kind": "quorum", "vhost_pattern": ".*", "queue_pattern": ".*"},
            [{"Node name": "a", "Number of quorum queues": 1, "Number of streams": 0}],
        ),
        (["drain"], "drain", {}, {"draining": True}),
        (["revive"], "revive", {}, {"draining": False}),
        (["check-if-node-is-quorum-critical"], "check-if-node-is-quorum-critical", {}, CHECK),
        (["has-reached-target-cluster-size"], "has-reached-target-cluster-size", {}, CHECK),
        (
            ["check-for-quorum-queues-without-an-elected-leader", "--across-all-vhosts", "x"],
            "check-for-quorum-queues-without-an-elected-leader",
            {"pattern": "x", "vhost": None, "across_all_vhosts": True},
            CHECK,
        ),
        (["await-online-quorum-plus-one"], "await-online-quorum-plus-one", {"timeout": 120}, CHECK),
        (
            ["force-shrink-member-to-current-member", "q"],
            "force-shrink-member-to-current-member",
            {"name": "q"},
            {"size": 1},
        ),
        (
            ["force-all-queues-shrink-member-to-current-member", "--vhost-pattern", "^v$"],
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


def test_rows_have_rabbitmqs_columns_and_json_the_same_keys(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """I1: in this order."""
    columns = (
        *("Node Name", "Raft State", "Membership", "Last Log Index", "Last Written", "Last Applied"),
        *("Commit Index", "Snapshot Index", "Term", "Machine Version"),
    )
    broker.answer = [dict.fromkeys(columns, 1)]
    assert main.main(["quorum-status", "q", "--vhost", "v", "--formatter", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == ",".join(columns)
    assert main.main(["quorum-status", "q", "--formatter", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == broker.answer
    assert main.main(["quorum-status", "q", "--formatter", "pretty_table"]) == 0
    assert broker.requests[0] == {"op": "quorum-status", "vhost": "v", "arguments": {"name": "q"}}


@pytest.mark.parametrize(
    ("written", "answer", "code"),
    [
        (["check-if-node-is-quorum-critical"], BAD_CHECK, 69),
        (["has-reached-target-cluster-size"], BAD_CHECK, 69),
        (["check-if-new-quorum-queue-replicas-have-finished-initial-sync"], BAD_CHECK, 69),
        (["grow", "b", "all"], FAILED, 70),
        (["shrink", "b"], FAILED, 70),
        (["quorum-status", "q"], RefusedByBroker("no queue", "NotFound"), 67),
        (["quorum-status", "q"], RefusedByBroker("classic_queue_not_supported", "NotSupported"), 70),
        (["add-member", "q", "b"], RefusedByBroker("node_not_running", "PreconditionFailed"), 70),
        (["add-member", "q", "b"], RefusedByBroker("it timed out", "Unavailable"), 75),
        (["grow", "b", "all", "--queue-pattern", "("], RefusedByBroker("no pattern", "InvalidArgument"), 64),
        # Other commands keep their own, but for what may be tried again.
        (["purge", "q"], RefusedByBroker("it timed out", "Unavailable"), 75),
        (["purge", "q"], RefusedByBroker("no queue", "NotFound"), 1),
    ],
)
def test_exit_codes_are_those_of_rabbitmqs_tools(
    broker: Broker, written: list[str], answer: Any, code: int
) -> None:
    """T17."""
    broker.answer = answer
    assert main.main(written) == code


STATUS = {
    "cluster_name": "shop",
    "cluster_tags": [],
    "disk_nodes": ["a", "b"],
    "running_nodes": ["a"],
    "versions": {"a": {"amqp10broker": "1.0"}},
    "alarms": [{"node": "a", "alarm": "memory"}],
    "partitions": {},
    "listeners": {
        "a": [{"node": "a", "protocol": "clustering", "interface": "::1", "port": 5, "purpose": "x"}]
    },
    "maintenance_status": {"a": "under maintenance", "b": "not under maintenance"},
    "feature_flags": [],
}


def test_the_status_of_a_cluster_is_for_people_or_json(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """L1: in RabbitMQ's order."""
    broker.answer = STATUS
    assert main.main(["cluster-status"]) == 0
    parts = capsys.readouterr().out.strip().split("\n\n")
    assert parts[::2] == [
        *("Basics", "Cluster Tags", "Disk Nodes", "Running Nodes", "Versions", "Alarms"),
        *("Network Partitions", "Listeners", "Maintenance status", "Feature flags"),
    ]
    assert parts[1::2] == [
        *("Cluster name: shop", "(none)", "a\nb", "a", "a: amqp10broker 1.0", "memory alarm on node a"),
        *("(none)", "Node: a, interface: ::1, port: 5, protocol: clustering, purpose: x"),
        *("Node: a, status: under maintenance\nNode: b, status: not under maintenance", "(none)"),
    ]
    assert main.main(["cluster-status", "--formatter", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


def test_a_node_is_forgotten_with_a_word_on_what_is_left(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """J6."""
    broker.answer = {"node": "b", "failed": FAILED[1:]}
    assert main.main(["forget-cluster-node", "b"]) == 0
    assert capsys.readouterr().out == (
        "node 'b' is out of the cluster; its members of these quorum queues are still to be removed: "
        "'r' in vhost '/'\n"
    )
    broker.answer = {"running": 3}
    assert main.main(["await-online-nodes", "3", "--timeout", "9"]) == 0
    assert broker.requests[-1]["arguments"] == {"count": 3, "timeout": 9}
    broker.answer = {"name": "shop"}
    assert main.main(["set-cluster-name", "shop"]) == 0


@pytest.mark.parametrize(
    "written",
    [
        ["cluster-status", "--bogus"],
        ["forget-cluster-node"],
        ["grow", "b", "odd"],
        ["await-online-nodes", "many"],
        ["await-online-nodes", "0"],
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
        main.main(["list-queues", "--bogus"])
    assert other.value.code == 2


@pytest.mark.parametrize(
    ("written", "answer", "said"),
    [
        (
            ["join-cluster", "a"],
            {"node": "a", "joined": False},
            "The node is already a member of this cluster",
        ),
        (["join-cluster", "a=h:1"], {"node": "a", "joined": True}, "the node joins the cluster of node 'a'"),
        (["reset"], {"node": "d", "failed": []}, "node 'd' is out of the cluster, has no data any more"),
        (["force-reset"], {"node": "d", "failed": []}, "forget-cluster-node d"),
    ],
)
def test_coming_and_going_is_told(
    broker: Broker, capsys: pytest.CaptureFixture[str], written: list[str], answer: Any, said: str
) -> None:
    """J2, J5."""
    broker.answer = answer
    assert main.main(written) == 0
    assert said in capsys.readouterr().out
