"""What a node of a cluster tells: of queues those that it leads, and its member of the metadata's group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from prometheus_client.parser import text_string_to_metric_families

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.observe.exposition import scrape
from amqp10broker.observe.metrics import Form, MetricSource, NodeState, wanted
from amqp10broker.operations.node import MemberState
from amqp10broker.sessions.counters import ClientCounters
from tests.support.catalog_log import FakeHost
from tests.support.declaring import declare


class Source(MetricSource):
    """A node that leads the queue ``here``, and not ``elsewhere``."""

    attempts: ClassVar = {"amqp091": (3, 2)}
    coordination = MemberState("leader", "voter", 9, 8, 7, 6, 5, 4)

    def __init__(self) -> None:
        self.catalog: Catalog = Catalog(FakeHost().start_queue)
        for name in ("here", "elsewhere"):
            declare(self.catalog, "/", name, arguments={"x-queue-type": "quorum"})

    def node(self) -> NodeState:
        return NodeState(
            *("a", "three", "id", "1", "2"),
            now_s=100.0,
            uptime_s=40.0,
            open_fds=None,
            max_fds=None,
            memory=None,
            memory_limit=None,
            disk_free=None,
            disk_limit=None,
            alarms={"memory"},
            peers_lost=1,
            commits=None,
        )

    def clients(self) -> tuple[Any, dict[str, ClientCounters], Sequence[Any]]:
        past = SimpleNamespace(connections=0, parts={}, measures={}, blocked_s=0.0, bytes_in=0, bytes_out=0)
        return past, {}, ()

    def member(self, queue: DeclaredQueue) -> MemberState | None:
        return MemberState("leader", "voter", 3, 3, 3, 2, 1, 7)

    def is_here(self, queue: DeclaredQueue) -> bool:
        return queue.name == "here"


def found(form: Form, *families: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    text = b"".join(scrape(Source(), wanted(form, families=families))).decode()
    heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    bare = "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))
    samples: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(bare):
        samples[family.name] += [(sample.labels, sample.value) for sample in family.samples]
    return dict(samples)


def test_queues_are_those_that_the_node_leads() -> None:
    assert found(Form.AGGREGATED)["rabbitmq_queues"] == [({}, 1.0)]
    queues = found(Form.DETAILED, "queue_coarse_metrics")["rabbitmq_detailed_queue_messages"]
    assert queues == [({"vhost": "/", "queue": "here"}, 0.0)]


@pytest.mark.parametrize("form", [Form.AGGREGATED, Form.PER_OBJECT])
def test_the_group_of_the_metadata_is_there_once(form: Form) -> None:
    rows = found(form)["rabbitmq_raft_commit_index"]
    group = ({"module": "metadata_store", "ra_system": "coordination"}, 6.0)
    queue = ({"vhost": "/", "queue": "here"}, 2.0)
    assert rows == ([group] if form is Form.AGGREGATED else [queue, group])


def test_alarms_and_nodes_that_are_lost_are_there() -> None:
    names = found(Form.AGGREGATED)
    assert names["rabbitmq_alarms_memory_used_watermark"] == [({}, 1.0)]
    assert names["rabbitmq_alarms_free_disk_space_watermark"] == [({}, 0.0)]
    assert names["rabbitmq_unreachable_cluster_peers_count"] == [({}, 1.0)]
