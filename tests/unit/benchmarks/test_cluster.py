"""The question about a cluster: how another broker's nodes are run, and how a pause is measured."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import cluster, spec
from benchmarks.cluster import CASES, NODES, Idle, Pause, PeerCluster, Rate
from benchmarks.errors import BrokerError, MeasureError
from benchmarks.stream import Counts

PROGRAM = """#!/bin/sh
echo "$@" >>"$0.calls"
case $1 in
  port) echo $((5000 + $2)) ;;
  pid) echo $((70 + $2)) ;;
  stop) [ ! -e "$0.hangs" ] || exec sleep 60
        [ "$2" != 3 ] || { echo it does not end; exit 1; } ;;
esac
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "nodes"
    path.write_text(PROGRAM)
    path.chmod(0o700)
    return path


def test_another_brokers_nodes_are_run_by_a_program(program: Path) -> None:
    peer = PeerCluster(str(program))
    calls = Path(f"{program}.calls")
    assert sorted(calls.read_text().splitlines()[:NODES]) == ["start 1", "start 2", "start 3"]
    assert [peer.endpoint(node).port for node in range(NODES)] == [5001, 5002, 5003]
    assert peer.pid(1) == 72
    peer.stop(0)
    assert calls.read_text().splitlines()[-1] == "stop 1"


def test_a_program_that_fails_is_named_with_its_words(program: Path) -> None:
    peer = PeerCluster(str(program))
    with pytest.raises(BrokerError, match=r"nodes stop 3' ended with 1: it does not end"):
        peer.end()


def test_what_was_measured_counts_although_another_brokers_nodes_do_not_end(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    context: Any = SimpleNamespace(
        options=SimpleNamespace(cluster_peer=str(program), cluster_peer_only=True), say=said.append
    )
    with cluster._clusters(context) as clusters:
        assert [each.name for each in clusters] == ["peer"]
    assert said == [f"peer   does not end: '{program} stop 3' ended with 1: it does not end\n"]
    with cluster._clusters(context):
        Path(f"{program}.hangs").touch()
        monkeypatch.setattr(cluster, "_COMMAND_S", 0.1)
    assert said[1:] == [f"peer   does not end: '{program} stop 1' did not end in 0.1 s"]


def test_idle_queues_are_gone_when_they_have_been_measured(
    clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[str, str] = {}

    class Queues:
        def __init__(self, endpoint: object) -> None:
            self.declare = known.update

        def __enter__(self) -> Queues:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def delete(self, queues: list[str]) -> None:
            counts.append(len(known))
            for queue in queues:
                del known[queue]

    counts: list[int] = []
    monkeypatch.setattr(cluster, "Queues", Queues)
    monkeypatch.setattr(cluster, "process_cpu_s", lambda pid: 0.0)
    monkeypatch.setattr(cluster, "process_rss_bytes", lambda pid: 0)
    context: Any = SimpleNamespace(
        options=SimpleNamespace(cluster_idle_queues=7), duration_s=1.0, say=lambda text: None
    )
    nodes: Any = SimpleNamespace(name="ours", endpoint=lambda node: node, pid=lambda node: node)
    Idle().measure(context, nodes, "rest")
    assert counts == [7]
    assert not known


class Load:
    """A load process whose confirms come as they are told."""

    def __init__(self, *confirmed: int) -> None:
        self.confirmed = itertools.chain(confirmed, itertools.repeat(confirmed[-1]))

    def counts(self) -> Counts:
        return Counts(0, next(self.confirmed), 0, 0, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes one second."""
    now = itertools.count()
    monkeypatch.setattr(cluster.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(cluster.time, "sleep", lambda seconds: None)


def test_the_longest_time_without_a_confirm_is_the_pause(clock: None) -> None:
    load: Any = Load(5, 6, 6, 6, 6, 7, 8, 8, 9)
    watch = cluster._Watch(load)
    watch.look(0.0, until=lambda: watch.confirmed == 9)
    # Two readings of the clock to a look: five looks from 6 to 7.
    assert watch.longest_s == 8.0


def test_a_publisher_that_hears_nothing_any_more_is_said(clock: None) -> None:
    load: Any = Load(5)
    watch = cluster._Watch(load)
    watch.look(5.0)
    with pytest.raises(MeasureError, match="nothing was confirmed for 30 s"):
        watch.await_progress()


def test_rates_are_those_of_one_queue_led_at_the_first_node() -> None:
    rates = [case for case in CASES if isinstance(case, Rate)]
    for case in rates:
        (connection, *_) = case.connections("/queues/q", 100)
        (part, *_) = connection
        assert isinstance(part, spec.Session)
        assert {group.addresses for group in part.publish} == {("/queues/q",)}
    assert {case.node for case in rates} == {0, 1}
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(isinstance(case, Pause) for case in CASES) == 3
