"""A node whose clock is two hours ahead, beside two whose clocks are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_cluster_operations import declare, drained, leader, publish, run
from tests.support.cluster_process import ClusterProcess

pytestmark = pytest.mark.xdist_group("cluster")


def lead(nodes: ClusterProcess, name: str) -> None:
    """Let a node lead; it may have to be reached first."""

    def leads() -> bool:
        nodes.run_command(nodes.node("a"), "member", "transfer-leadership", "q", name)
        return leader(nodes, "q") == name

    nodes.wait_until(leads, f"node {name} leads")


def test_messages_live_on_when_a_node_leads_whose_clock_is_hours_ahead(tmp_path: Path) -> None:
    """They have an hour to live. What is wrong is in the log, and shown by every node."""
    with ClusterProcess(tmp_path, 3) as nodes:
        wrong = nodes.node("c")
        wrong.stop()
        command = wrong.folder / "command"
        words = command.read_text()
        assert "-m amqp10broker " in words
        command.write_text(words.replace("-m amqp10broker ", "-m tests.support.skewed_serve 7200 ", 1))
        wrong.start()
        nodes.wait_until_up(wrong, at=nodes.node("a"))
        declare(nodes, "q", 3)
        run(nodes, "a", "policy", "set", "hour", "^q$", '{"message-ttl": 3600000}')
        publish(nodes.node("a"), "q", 3)
        lead(nodes, "c")
        publish(nodes.node("b"), "q", 1, first=3)
        lead(nodes, "b")
        assert drained(nodes.node("a"), "q") == [0, 1, 2, 3]
        nodes.wait_until(lambda: wrong.said("clock is wrong"), "it is in the log")
        waiting = run(nodes, "a", "waiting")
        assert "c: the clock of this node is 7199." in " ".join(waiting.split())
        nodes.check_logs()
