"""The checks of doctor, and what they look at."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from amqp10broker.operations.doctor import CHECKS, ClusterSeen, Facts, PeerSeen, State, findings
from amqp10broker.operations.node import Leaderless
from amqp10broker.operations.snapshot import (
    CertificateSeen,
    ClockSeen,
    DiskView,
    FileSystem,
    FlowView,
    Inspection,
    ListenerSeen,
    MemoryView,
    NodeView,
    RecordingView,
    ResourcesView,
    ResourceView,
    Rules,
    TraceView,
    mount_of,
)
from tests.support.declaring import declare
from tests.unit.operations.test_members import World as Cluster

GIB = 1024**3
DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000


def resource(limit: int | None) -> ResourceView:
    return ResourceView("0.6", limit, limit, False, (), None, None)


def node(**changes: Any) -> NodeView:
    resources = changes.pop("resources", None) or resources_of()
    whole = NodeView(
        container_id="a",
        version="1.0",
        pid=1,
        uptime_s=5.0,
        listeners=("127.0.0.1:5672",),
        tls_listeners=(),
        flow=FlowView(1, 1, 1),
        data_dir="/data",
        journal=None,
        alarms=(),
        rss_bytes=1,
        resources=resources,
        recording=None,
        recording_failed=None,
        traces=(),
    )
    return replace(whole, **changes)


def resources_of(
    memory_limit: int | None = 6 * GIB, free: int | None = 50 * GIB, disk_limit: int | None = 5 * GIB
) -> ResourcesView:
    return ResourcesView(
        MemoryView(GIB, 10 * GIB, resource(memory_limit)), DiskView(free, "/data", resource(disk_limit))
    )


RULES = Rules(
    passwords=True,
    plain_needs_tls=False,
    loopback_users=("guest",),
    anonymous_user="",
    cluster_tls=False,
    connection_max=1000,
    http_connection_max=100,
    trace_frames=False,
    test_mode=False,
)
HERE = ListenerSeen("amqp", "127.0.0.1:5672", False, True)
THERE = ListenerSeen("amqp", "0.0.0.0:5672", False, False)
SECURED = ListenerSeen("amqp", "0.0.0.0:5671", True, False)


def seen(**changes: Any) -> Inspection:
    rules = replace(RULES, **changes.pop("rules", {}))
    whole = Inspection(
        node=node(),
        rules=rules,
        listeners=(HERE, SECURED),
        guest=None,
        certificates=(CertificateSeen("tls_certificate", "c.pem", NOW_MS + 90 * DAY_MS, False),),
        clock=ClockSeen(3, True, "the kernel says so"),
        at_ms=NOW_MS,
        boot_id="boot-a",
        files_open=40,
        files_max=4096,
        memory_total_bytes=10 * GIB,
        memory_allowed_bytes=10 * GIB,
        file_system=FileSystem("ext4", "/", 100 * GIB),
        format=1,
    )
    return replace(whole, **changes)


THREE = ClusterSeen(
    "a",
    ("a", "b", "c"),
    versions={"a": "1.0", "b": "1.0", "c": "1.0"},
    peers=(PeerSeen("b", "boot-b", 0), PeerSeen("c", "boot-c", -20)),
)


def facts(cluster: ClusterSeen | None = None, **changes: Any) -> Facts:
    rest = {name: changes.pop(name) for name in ("alarms", "durable_queues", "streams") if name in changes}
    whole = Facts(seen(**changes), cluster or ClusterSeen("a", ("a",)), {}, 2, 0, cluster is not None)
    return replace(whole, **rest)


def found(check: str, of: Facts) -> tuple[State, str, str]:
    said = CHECKS[check](of)
    assert said is not None
    return said


@pytest.mark.parametrize(
    ("whole", "without"),
    [(facts(), "cluster-"), (facts(THREE), "nothing"), (facts(THREE, certificates=()), "certificates")],
    ids=["alone", "three nodes", "no certificates"],
)
def test_a_broker_in_order_passes_every_check_that_applies(whole: Facts, without: str) -> None:
    rows = findings(whole)
    assert [row.check for row in rows] == [name for name in CHECKS if not name.startswith(without)]
    assert [(row.check, row.state, row.to_do) for row in rows if row.state is not State.OK or row.to_do] == []
    assert all(row.evidence for row in rows)


def remote(purpose: str, tls: bool = False) -> ListenerSeen:
    return ListenerSeen(purpose, "10.0.0.1:99", tls, False)


def certificate(left_ms: int | None, changed: bool = False) -> CertificateSeen:
    at = None if left_ms is None else NOW_MS + left_ms
    return CertificateSeen("tls_certificate", "c.pem", at, changed)


RECORDING = RecordingView("/rec", "run", 50, 0, 0, 0.0, 0.0, 0, 0, 0, 0)
GUEST_FOR_ALL: dict[str, Any] = {"rules": {"loopback_users": ()}, "guest": True}
ANONYMOUS: dict[str, Any] = {"anonymous_user": "guest"}

CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("default-user", "ok", "another password|is not 'guest'", {"guest": False}),
    ("default-user", "ok", "tokens only", {"guest": True, "rules": {"passwords": False}}),
    ("default-user", "warn", "for clients on this machine and", {"guest": True}),
    ("default-user", "warn", "this machine only", {**GUEST_FOR_ALL, "listeners": (HERE,)}),
    ("default-user", "bad", r"at 0\.0\.0\.0:5671", GUEST_FOR_ALL),
    ("default-user", "bad", r"at 10\.0\.0\.1:99", {**GUEST_FOR_ALL, "listeners": (HERE, remote("http"))}),
    ("anonymous-login", "warn", "for clients on this machine and", {"rules": ANONYMOUS}),
    (
        "anonymous-login", "warn", "this machine only",
        {"rules": {**ANONYMOUS, "loopback_users": ()}, "listeners": (HERE,)},
    ),
    ("anonymous-login", "bad", "0.0.0.0:5671", {"rules": {**ANONYMOUS, "loopback_users": ()}}),
    ("tls", "bad", "passwords and messages .* at 0.0.0.0:5672$", {"listeners": (THERE, SECURED)}),
    ("tls", "warn", "not passwords", {"listeners": (THERE,), "rules": {"plain_needs_tls": True}}),
    ("http-api", "bad", "unencrypted at 10", {"listeners": (HERE, remote("http"))}),
    ("http-api", "warn", "other machines", {"listeners": (HERE, remote("http", tls=True))}),
    ("metrics", "warn", "without a login", {"listeners": (HERE, remote("metrics"))}),
    ("certificates", "warn", "in 29 days", {"certificates": (certificate(30 * DAY_MS - 1),)}),
    ("certificates", "ok", "c.pem expires 2027-02-14$", {"certificates": (certificate(30 * DAY_MS),)}),
    ("certificates", "bad", "in 6 days", {"certificates": (certificate(7 * DAY_MS - 1),)}),
    ("certificates", "bad", "expired 2027-01-15", {"certificates": (certificate(0),)}),
    ("certificates", "unknown", "cannot be read", {"certificates": (certificate(None),)}),
    ("certificates", "warn", "has changed since", {"certificates": (certificate(99 * DAY_MS, True),)}),
    ("certificates", "bad", "expired.*; tls", {"certificates": (certificate(0), certificate(None, True))}),
    ("open-files", "ok", "no limit", {"files_max": None}),
    ("open-files", "ok", "no more than 1300", {"files_max": 1300}),
    ("open-files", "warn", r"up to 1300 .*\(connection_max 1000, http_", {"files_max": 1299}),
    ("open-files", "warn", "up to 1310 .*5 streams", {"files_max": 1300, "streams": 5}),
    ("open-files", "warn", "^the process may open 1024", {"files_max": 1024, "files_open": None}),
    ("open-files", "bad", "3700 files are open", {"files_open": 3700}),
    ("memory", "ok", "above 6.0 GiB; .* use 8.0 GiB, a limit", {"memory_allowed_bytes": 8 * GIB}),
    ("memory", "warn", "above 6.0 GiB", {"memory_allowed_bytes": 7 * GIB}),
    ("memory", "bad", "above 6.0 GiB", {"memory_allowed_bytes": 6 * GIB}),
    ("memory", "bad", "never blocked for memory", {"node": node(resources=resources_of(None))}),
    ("memory", "unknown", "does not report", {"memory_allowed_bytes": None}),
    ("disk", "ok", "no data folder", {"node": node(data_dir=None)}),
    ("disk", "ok", "50.0 GiB are free at /data of 100.0 GiB; .* below 5.0 GiB", {}),
    ("disk", "warn", "9.0 GiB", {"node": node(resources=resources_of(free=9 * GIB))}),
    ("disk", "warn", "1023.0 MiB", {"node": node(resources=resources_of(free=1023 * 1024**2, disk_limit=1))}),
    ("disk", "bad", "4.0 GiB", {"node": node(resources=resources_of(free=4 * GIB))}),
    ("disk", "bad", "never blocked", {"node": node(resources=resources_of(disk_limit=None))}),
    ("disk", "unknown", "does not report", {"node": node(resources=resources_of(free=None))}),
    ("alarms", "bad", "disk at node 'b', memory at node 'b'", {"alarms": {"b": ("memory", "disk")}}),
    ("data-folder", "bad", "2 queues are declared durable", {"node": node(data_dir=None)}),
    ("data-folder", "warn", "no data folder", {"node": node(data_dir=None), "durable_queues": 0}),
    ("file-system", "ok", "no data folder", {"node": node(data_dir=None), "file_system": None}),
    ("file-system", "unknown", "does not report", {"file_system": None}),
    ("file-system", "unknown", "on newfs", {"file_system": FileSystem("newfs", "/", None)}),
    ("file-system", "bad", "in memory", {"file_system": FileSystem("tmpfs", "/tmp", None)}),
    ("file-system", "bad", "layer of a container", {"file_system": FileSystem("overlay", "/", None)}),
    ("file-system", "warn", "nfs4, mounted at /net", {"file_system": FileSystem("nfs4", "/net", None)}),
    ("file-system", "warn", "fuse.sshfs", {"file_system": FileSystem("fuse.sshfs", "/net", None)}),
    ("clock", "ok", "the kernel says so", {"clock": ClockSeen(-999, True, "the kernel says so")}),
    ("clock", "warn", "1.0 s behind", {"clock": ClockSeen(-1000, True, "x")}),
    ("clock", "bad", "30.0 s ahead", {"clock": ClockSeen(30_000, True, "x")}),
    ("clock", "warn", "^nothing keeps it", {"clock": ClockSeen(0, False, "nothing keeps it")}),
    ("clock", "unknown", "nobody says", {"clock": ClockSeen(0, None, "nobody says")}),
    ("version", "ok", "broker 1.0$", {"format": None}),
    ("version", "ok", "broker 1.0, data folder of format 1$", {"format": 1}),
    ("tracing", "warn", "every frame", {"rules": {"trace_frames": True}}),
    (
        "tracing", "warn", "^frames are traced: 7$",
        {"node": node(traces=(TraceView("7", "x", "f", 1, None), TraceView("8", "x", "f", 1, "full")))},
    ),
    ("tracing", "warn", "into /rec", {"node": node(recording=RECORDING)}),
    ("test-mode", "bad", "test_mode", {"rules": {"test_mode": True}}),
]  # fmt: skip


@pytest.mark.parametrize(("check", "state", "evidence", "changes"), CASES)
def test_a_check_says_what_is_so(check: str, state: str, evidence: str, changes: dict[str, Any]) -> None:
    said_state, said, to_do = found(check, facts(**changes))
    assert (said_state, bool(to_do)) == (state, state != "ok"), said
    assert re.search(evidence, said), said


NINE = tuple(f"q{number}" for number in range(1, 10))
CLUSTERS: list[tuple[str, str, str, ClusterSeen]] = [
    ("version", "warn", "a 1.0, b 1.1, c 1.0", replace(THREE, versions={"a": "1.0", "b": "1.1", "c": "1.0"})),
    ("cluster-quorum", "bad", "majority: q1, q2$", replace(THREE, critical=("q1", "q2"))),
    ("cluster-quorum", "bad", "q5, and 4 more$", replace(THREE, critical=NINE)),
    ("cluster-nodes", "bad", "cannot be reached: b", replace(THREE, down=("b",))),
    ("cluster-nodes", "warn", "an even number", ClusterSeen("a", ("a", "b"), peers=THREE.peers[:1])),
    ("cluster-nodes", "warn", "one node", ClusterSeen("a", ("a",))),
    (
        "cluster-machines", "warn", "^a and c run on the same machine$",
        replace(THREE, peers=(THREE.peers[0], PeerSeen("c", "boot-a", 0))),
    ),
    ("cluster-machines", "unknown", "for c: they have not", replace(THREE, peers=THREE.peers[:1])),
    ("cluster-machines", "unknown", "for b, c: they were not", replace(THREE, peers=(), asked=False)),
    (
        "cluster-machines", "unknown", "unknown for c",
        replace(THREE, peers=(THREE.peers[0], PeerSeen("c", None, 0))),
    ),
    (
        "cluster-clocks", "warn", "b is at least 1.5 s behind$",
        replace(THREE, peers=(PeerSeen("b", None, -1500), THREE.peers[1])),
    ),
    ("cluster-clocks", "bad", "40.0 s ahead", replace(THREE, peers=(PeerSeen("b", None, 40_000),))),
    ("cluster-clocks", "unknown", "unknown for b", replace(THREE, peers=THREE.peers[1:])),
]  # fmt: skip


@pytest.mark.parametrize(("check", "state", "evidence", "cluster"), CLUSTERS)
def test_a_check_of_the_cluster_says_what_is_so(
    check: str, state: str, evidence: str, cluster: ClusterSeen
) -> None:
    said_state, said, to_do = found(check, facts(cluster))
    assert (said_state, bool(to_do)) == (state, True), said
    assert re.search(evidence, said), said


MOUNTS = """\
22 1 0:21 / / rw,relatime shared:1 - overlay overlay rw
23 22 8:1 / /data rw,relatime shared:2 master:3 - ext4 /dev/sda1 rw
24 22 8:2 / /data/my\\040disk rw - xfs /dev/sdb rw
25 22 0:5 / /tmp rw - tmpfs tmpfs rw
26 22 8:3 / /tmp rw - btrfs /dev/sdc rw
no line of it
"""


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/data/queues", ("ext4", "/data")),
        ("/data", ("ext4", "/data")),
        ("/database", ("overlay", "/")),
        ("/data/my disk/a", ("xfs", "/data/my disk")),
        ("/tmp/x", ("btrfs", "/tmp")),
        ("/", ("overlay", "/")),
    ],
)
def test_a_folder_is_on_the_last_mount_that_is_nearest(path: str, mount: tuple[str, str]) -> None:
    """proc_pid_mountinfo(5): blanks are in octal, and a later mount covers an earlier one."""
    assert mount_of(path, MOUNTS) == mount


class Node:
    """A running node whose time goes on by 10 ms each time that it is asked for."""

    def __init__(self, cluster: Any, found: Inspection) -> None:
        self.cluster = cluster
        self.found = found
        self.time_ms = NOW_MS

    def now_ms(self) -> int:
        self.time_ms += 10
        return self.time_ms

    async def inspect(self) -> Inspection:
        return self.found


def world(count: int = 3, **changes: Any) -> Cluster:
    made = Cluster(count, 1 if count else 0)
    made.node = Node(made.cluster, seen(**changes))
    return made


def rows(world: Cluster, **given: Any) -> dict[str, tuple[str, str]]:
    return {row["check"]: (row["state"], row["evidence"]) for row in world.run("doctor", **given)["checks"]}


def answers(world: Cluster, **at_ms: int) -> None:
    world.cluster.there = {
        ("abc".index(name) + 1, "doctor"): {"at_ms": at, "boot_id": f"boot-{name}"}
        for name, at in at_ms.items()
    }


def test_other_nodes_are_asked_what_they_say_of_themselves() -> None:
    """Their times are compared with ours before and after: the time in transit is not a difference."""
    made = world()
    answers(made, b=NOW_MS + 10, c=NOW_MS + 20)
    found = rows(made)
    assert found["cluster-clocks"] == ("ok", "the clocks of the nodes differ by less than 1 s")
    assert found["cluster-machines"][0] == "ok"
    made = world()
    answers(made, b=NOW_MS + 20 + 2500, c=NOW_MS + 10 - 31_000)
    state, evidence = rows(made)["cluster-clocks"]
    assert state == "bad"
    assert "b is at least 2.5 s ahead, c is at least 31.0 s behind" in evidence


def test_a_node_by_itself_asks_no_other() -> None:
    """Nodes that get its request do the same, or requests would never end."""
    made = world()
    answers(made, b=NOW_MS, c=NOW_MS)
    found = rows(made, by_itself=True)
    assert found["cluster-clocks"] == ("unknown", "unknown for b, c: they were not asked")


def test_the_catalog_says_what_is_durable_and_critical() -> None:
    """Exclusive queues end with their connection, durable or not."""
    made = world(node=node(data_dir=None))
    declare(made.catalog, "/", "gone", durable=False)
    made.cluster.declare("q", 1, 2, 3)
    made.cluster.down = {3}
    made.cluster.on = {2: ["memory"]}
    answers(made, b=NOW_MS)
    found = rows(made)
    assert found["data-folder"][1].startswith("1 queue is declared durable")
    assert found["cluster-quorum"][0] == "bad"
    assert "queue 'q' in vhost '/'" in found["cluster-quorum"][1]
    assert found["cluster-nodes"] == ("bad", "3 nodes: a, b, c; these cannot be reached: c")
    assert found["alarms"] == ("bad", "publishers are blocked by alarms: memory at node 'b'")


def test_queues_without_a_leader_are_bad_if_they_lack_nodes_and_pass_if_not() -> None:
    made = world()
    answers(made, b=NOW_MS, c=NOW_MS)
    assert rows(made)["cluster-leaders"] == ("ok", "every quorum queue with a member here has a leader")
    made.cluster.lacking = Leaderless(2_500, ("q in /",), 0, (), 32, 5.0)
    assert rows(made)["cluster-leaders"] == (
        "warn",
        "2500 queues have no leader, among them q in /: 2500 elect one, 32 at a time from here",
    )
    made.cluster.lacking = Leaderless(1, ("q in /",), 1, ("b", "c"), 0, 5.0)
    assert rows(made)["cluster-leaders"][0] == "bad"
