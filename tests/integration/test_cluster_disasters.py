"""What is lost for good, with real nodes: most of a cluster, a journal, a whole folder."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from pika.exceptions import AMQPError

from tests.support.broker_process import run_program
from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.crash_history import make_body
from tests.support.crash_load import connected, look, publish

pytestmark = pytest.mark.long


def force_standalone(node: ClusterNode, *options: str) -> subprocess.CompletedProcess[str]:
    return run_program("cluster", "force-standalone", str(node.folder), *options)


def test_what_is_left_of_a_cluster_goes_on_alone_and_lets_others_join(tmp_path: Path) -> None:
    """Z1, Z2: two of three are lost; an old node that comes back is of another cluster."""
    with ClusterProcess(tmp_path) as cluster:
        a, b, c = cluster.nodes
        assert cluster.run_command(b, "queue", "declare", "kept", "--type", "quorum").returncode == 0
        assert cluster.run_command(c, "queue", "declare", "elsewhere").returncode == 0
        cluster.wait_until(
            lambda: "elsewhere" in cluster.run_command(a, "queue", "list").stdout, "it is known"
        )
        publish(b, "kept", *map(make_body, map(str, range(20))))
        cluster.wait_until(
            lambda: all(
                row["Last Applied"] == row["Last Log Index"]
                for row in cluster.ask(a, "queue", "quorum-status", "kept")
            ),
            "all members have all of it",
        )
        running = force_standalone(a, "--yes")
        assert running.returncode == 1
        assert "in use" in running.stderr or "uses" in running.stderr, running.stderr
        # A consumer at a node that is lost has some of it.
        with connected(c) as connection:
            channel = connection.channel()
            for _ in range(3):
                assert channel.basic_get("kept")[0] is not None
            for node in (b, c, a):
                node.kill()
            with suppress(AMQPError):
                connection.close()
        unsure = force_standalone(a)
        assert unsure.returncode == 1
        assert "--yes" in unsure.stderr
        done = force_standalone(a, "--yes")
        assert done.returncode == 0, done.stderr
        assert "lost nodes: b, c" in done.stderr
        assert "queue 'elsewhere' in vhost '/'" in done.stderr
        a.start()
        cluster.wait_until_up(a)
        assert cluster.status(a)["disk_nodes"] == ["a"]
        queues = cluster.ask(a, "queue", "list", "name", "members")
        assert [row["name"] for row in queues] == ["kept"]
        cluster.wait_until(lambda: len(look(a, "kept")) == 20, "what a lost client had is back")
        assert [text for text, _ in look(a, "kept")] == [str(number) for number in range(20)]
        assert cluster.run_command(a, "queue", "declare", "new", "--type", "quorum").returncode == 0
        publish(a, "new", make_body("one"))
        publish(a, "kept", make_body("20"))
        # A lost node that comes back is refused.
        b.start()
        cluster.wait_until(lambda: b.said("nodes of different clusters do not talk"), "it is told")
        b.kill()
        assert cluster.status(a)["disk_nodes"] == ["a"]
        # Started as empty it joins, and its name is free.
        b.empty()
        b.start()
        cluster.wait_until_up(b, at=a)
        assert sorted(cluster.status(b)["disk_nodes"]) == ["a", "b"]
        assert cluster.run_command(a, "member", "add", "kept", "b").returncode == 0
        assert len(look(b, "kept")) == 21
        # Once more through a start: what was made alone stays as it has become.
        a.stop()
        a.start()
        cluster.wait_until_up(a, b)
        cluster.wait_until(
            lambda: len(cluster.ask(a, "queue", "quorum-status", "kept")) == 2, "both members are there again"
        )
        assert len(look(a, "kept")) == 21


def test_a_node_with_a_damaged_journal_says_how_it_is_replaced(tmp_path: Path) -> None:
    """Z3: it is forgotten, begins empty under its old name, and has members again."""
    with ClusterProcess(tmp_path) as cluster:
        a, b, _ = cluster.nodes
        assert cluster.run_command(a, "queue", "declare", "kept", "--type", "quorum").returncode == 0
        publish(a, "kept", *map(make_body, map(str, range(20))))
        b.stop()
        journal = min((b.folder / "journal").iterdir())
        content = bytearray(journal.read_bytes())
        content[100] ^= 1
        journal.write_bytes(content)
        b.start()
        cluster.wait_until(lambda: b.said("cluster forget-node b"), "it says what to do")
        cluster.wait_until(lambda: b.pid is None, "it has ended")
        assert cluster.run_command(a, "cluster", "forget-node", "b").returncode == 0
        b.empty()
        b.start()
        cluster.wait_until_up(b, at=a)
        assert cluster.run_command(a, "member", "grow", "b", "all").returncode == 0
        assert len(look(b, "kept")) == 20
