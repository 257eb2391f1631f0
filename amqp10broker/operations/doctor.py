"""The checklists: `doctor` for production, on the facts of a node, and `upgrade-check`.

A fact that could not be determined gives `State.UNKNOWN`, with the reason as evidence. `docs/operating.md`
has a row for each check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.emulation import ADDRESS_V1, GLOBAL_QOS, MASTER_LOCATOR, VERSIONS, Upgrade
from amqp10broker.metadata.queue import DeclaredQueue, deprecated_features
from amqp10broker.operations.cluster import critical_groups
from amqp10broker.operations.node import Caller, ClusterNode, Leaderless
from amqp10broker.operations.operation import Check, Command, counted, operation
from amqp10broker.operations.running import connections
from amqp10broker.operations.snapshot import Inspection, ListenerSeen, document
from amqp10broker.queues.settings import DELIVERY_LIMIT, Overflow

FILES_BESIDE: Final = 200
"""Files beside those of connections and streams: journal, catalog, log, imported modules."""
FILES_OF_STREAM: Final = 2
DAY_MS: Final = 86_400_000
CERTIFICATE_WARN_MS: Final = 30 * DAY_MS
CERTIFICATE_BAD_MS: Final = 7 * DAY_MS
CLOCK_WARN_MS: Final = 1_000
CLOCK_BAD_MS: Final = 30_000
DISK_LOW_BYTES: Final = 1024**3
FILES_FULL_SHARE: Final = 0.9
MEMORY_WARN_SHARE: Final = 0.8

_KEPT: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs"})
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_OF_CONTAINER: Final = frozenset({"overlay", "aufs", "squashfs"})
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre"})


class State(StrEnum):
    """The severity of a finding, the worst first."""

    BAD = "bad"
    WARN = "warn"
    UNKNOWN = "unknown"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class PeerSeen:
    """Data of another node of the cluster.

    Attributes:
        ahead_ms: lower bound by which its time is ahead of this node's; negative: behind. The duration of
            request and answer is allowed for.
    """

    name: str
    boot_id: str | None
    ahead_ms: int


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The cluster in the view of a node. `down`: nodes that do not run. `leaderless`: the queues here without
    a leader.
    """

    me: str
    nodes: tuple[str, ...]
    down: tuple[str, ...] = ()
    critical: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    leaderless: Leaderless | None = None
    peers: tuple[PeerSeen, ...] = ()
    asked: bool = True

    @property
    def alone(self) -> bool:
        return len(self.nodes) < 2

    @property
    def silent(self) -> tuple[str, ...]:
        """Nodes that have not answered."""
        heard = {self.me, *(peer.name for peer in self.peers)}
        return tuple(name for name in self.nodes if name not in heard)


@dataclass(frozen=True, slots=True)
class Facts:
    seen: Inspection
    cluster: ClusterSeen
    alarms: Mapping[str, tuple[str, ...]]
    durable_queues: int
    streams: int
    formed: bool


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    state: State
    evidence: str
    to_do: str = ""


Found = tuple[State, str, str]
"""State, evidence and advice."""


def findings(facts: Facts) -> list[CheckResult]:
    """Evaluate all checks; returns the findings of those that apply, the worst first."""
    order = list(State)
    found = [CheckResult(name, *said) for name, check in CHECKS.items() if (said := check(facts)) is not None]
    return sorted(found, key=lambda each: order.index(each.state))


def _ok(evidence: str) -> Found:
    return State.OK, evidence, ""


def _unknown(evidence: str, to_do: str) -> Found:
    return State.UNKNOWN, evidence, to_do


def _warn(evidence: str, to_do: str) -> Found:
    return State.WARN, evidence, to_do


def _bad(evidence: str, to_do: str) -> Found:
    return State.BAD, evidence, to_do


def _default_user(facts: Facts) -> Found:
    rules, guest = facts.seen.rules, facts.seen.guest
    if not rules.passwords:
        return _ok("the broker accepts tokens only, no passwords")
    if guest is None:
        return _ok("there is no user 'guest'")
    if not guest:
        return _ok("the password of user 'guest' is not 'guest'")
    to_do = "run: amqp10broker user delete guest, or amqp10broker user set-password guest"
    open_to = _outside(facts, "amqp", "http")
    if "guest" in rules.loopback_users:
        return _warn(
            "user 'guest' has the password 'guest', for clients on this machine and those that connect "
            "through a proxy on it",
            to_do,
        )
    if not open_to:
        return _warn("user 'guest' has the password 'guest', for clients on this machine only", to_do)
    return _bad(f"user 'guest' has the password 'guest' at {_at(open_to)}", to_do)


def _anonymous_login(facts: Facts) -> Found:
    rules = facts.seen.rules
    user = rules.anonymous_user
    if not user:
        return _ok("SASL ANONYMOUS is off")
    to_do = 'set anonymous_login_user = "" in the configuration, and restart'
    if user in rules.loopback_users:
        evidence = f"user '{user}' needs no password, for clients on this machine"
        return _warn(f"{evidence} and those that connect through a proxy on it", to_do)
    open_to = _outside(facts, "amqp")
    if not open_to:
        return _warn(f"user '{user}' needs no password, for clients on this machine only", to_do)
    return _bad(f"user '{user}' needs no password at {_at(open_to)}", to_do)


def _tls(facts: Facts) -> Found:
    plain = [each for each in _outside(facts, "amqp") if not each.tls]
    if not plain:
        return _ok("only this machine can reach AMQP without TLS")
    to_do = (
        "set tls_certificate and tls_key, and bind the port without TLS to 127.0.0.1 or close it in the "
        "firewall"
    )
    if facts.seen.rules.plain_needs_tls:
        return _warn(f"clients can send messages unencrypted at {_at(plain)}, but not passwords", to_do)
    return _bad(f"clients can send passwords and messages unencrypted at {_at(plain)}", to_do)


def _http_api(facts: Facts) -> Found:
    open_to = _outside(facts, "http")
    if not open_to:
        return _ok("only this machine can reach the HTTP API")
    plain = [each for each in open_to if not each.tls]
    if plain:
        to_do = 'set http_tls, or http_host = "127.0.0.1", or turn it off with --no-http'
        return _bad(f"clients of the HTTP API can send passwords unencrypted at {_at(plain)}", to_do)
    to_do = 'close the port in the firewall, or set http_host = "127.0.0.1"'
    return _warn(f"other machines can reach the HTTP API at {_at(open_to)}", to_do)


def _metrics(facts: Facts) -> Found:
    open_to = _outside(facts, "metrics")
    if not open_to:
        return _ok("only this machine can reach the metrics")
    to_do = (
        "close the port in the firewall; or turn it off with --no-prometheus, and scrape /metrics of the "
        "HTTP API"
    )
    return _warn(f"other machines can read metrics without a login at {_at(open_to)}", to_do)


def _certificates(facts: Facts) -> Found | None:
    seen = facts.seen
    if not seen.certificates:
        return None
    worst = State.OK
    told, to_do = [], []
    for each in seen.certificates:
        name = f"{each.setting} {each.path}"
        if each.ends_at_ms is None:
            state, said = State.UNKNOWN, f"{name}: the end of its validity cannot be read"
            to_do.append("check the file with: openssl x509 -enddate -noout -in FILE")
        else:
            left = each.ends_at_ms - seen.at_ms
            state = State.OK
            said = f"{name} expires {_day(each.ends_at_ms)}"
            if left <= 0:
                state, said = State.BAD, f"{name} expired {_day(each.ends_at_ms)}"
            elif left < CERTIFICATE_WARN_MS:
                state = State.BAD if left < CERTIFICATE_BAD_MS else State.WARN
                said += f", in {left // DAY_MS} days"
            if state is not State.OK:
                to_do.append("renew the certificate, and restart the broker")
        if each.changed:
            state = min(state, State.WARN, key=list(State).index)
            said += "; the file has changed since the broker read it"
            to_do.append("restart the broker; it reads certificates when it starts")
        told.append(said)
        worst = min(worst, state, key=list(State).index)
    return worst, "; ".join(told), "; ".join(dict.fromkeys(to_do))


def _open_files(facts: Facts) -> Found:
    seen = facts.seen
    rules = seen.rules
    if seen.files_max is None:
        return _ok("the process has no limit of open files")
    used = "" if seen.files_open is None else f"{seen.files_open} files are open; "
    evidence = f"{used}the process may open {seen.files_max}"
    to_do = "raise LimitNOFILE= in the systemd unit, or ulimit -n; or lower connection_max"
    if seen.files_open is not None and seen.files_open > FILES_FULL_SHARE * seen.files_max:
        return _bad(evidence, to_do)
    need = rules.connection_max + rules.http_connection_max + FILES_OF_STREAM * facts.streams + FILES_BESIDE
    if seen.files_max < need:
        parts = f"connection_max {rules.connection_max}"
        if rules.http_connection_max:
            parts += f", http_connection_max {rules.http_connection_max}"
        if facts.streams:
            parts += f", {facts.streams} streams"
        return _warn(f"{evidence}; up to {need} may be needed ({parts}, and {FILES_BESIDE})", to_do)
    return _ok(f"{evidence}; no more than {need} are needed")


def _memory(facts: Facts) -> Found:
    seen = facts.seen
    limit = seen.node.resources.memory.resource.limit_bytes
    allowed, total = seen.memory_allowed_bytes, seen.memory_total_bytes
    if allowed is None:
        return _unknown(
            "the operating system does not report how much memory the process may use",
            "set vm_memory_high_watermark to an amount below the machine's memory",
        )
    room = _size(allowed)
    if total is not None and allowed < total:
        room += f", a limit below the machine's {_size(total)}"
    if limit is None:
        return _bad(
            f"publishers are never blocked for memory; the process may use {room}",
            "set vm_memory_high_watermark to an amount",
        )
    evidence = f"publishers are blocked above {_size(limit)}; the process may use {room}"
    to_do = "lower vm_memory_high_watermark (amqp10broker alarm memory-limit 0.6), or add memory"
    if limit >= allowed:
        return _bad(evidence, to_do)
    return _warn(evidence, to_do) if limit > MEMORY_WARN_SHARE * allowed else _ok(evidence)


def _disk(facts: Facts) -> Found:
    seen = facts.seen
    if seen.node.data_dir is None:
        return _ok("there is no data folder")
    disk = seen.node.resources.disk
    free, limit = disk.free_bytes, disk.resource.limit_bytes
    if free is None:
        return _unknown(
            f"the operating system does not report the free space at {seen.node.data_dir}",
            ("check with: df -h"),
        )
    evidence = f"{_size(free)} are free at {seen.node.data_dir}"
    if seen.file_system is not None and seen.file_system.total_bytes is not None:
        evidence += f" of {_size(seen.file_system.total_bytes)}"
    if limit is None:
        return _bad(
            f"{evidence}; publishers are never blocked for disk space",
            ("set a limit: amqp10broker alarm disk-limit 5GB"),
        )
    evidence += f"; publishers are blocked below {_size(limit)}"
    to_do = "free space; find long queues with: amqp10broker queue list"
    if free < limit:
        return _bad(evidence, to_do)
    return _warn(evidence, to_do) if free < max(2 * limit, DISK_LOW_BYTES) else _ok(evidence)


def _alarms(facts: Facts) -> Found:
    told = [f"{alarm} at node '{node}'" for node, names in facts.alarms.items() for alarm in sorted(names)]
    if not told:
        return _ok("no alarm is on")
    return _bad(
        f"publishers are blocked by alarms: {', '.join(told)}",
        "see amqp10broker status, and docs/limits-and-hardening.md",
    )


def _data_folder(facts: Facts) -> Found:
    folder = facts.seen.node.data_dir
    if folder is not None:
        return _ok(f"durable data is in {folder}")
    to_do = "start the broker with --data-dir"
    if facts.durable_queues:
        return _bad(
            f"{counted(facts.durable_queues, 'queue')} {'is' if facts.durable_queues == 1 else 'are'} "
            "declared durable, but the broker has no data folder: everything is lost when it stops",
            to_do,
        )
    return _warn("there is no data folder: everything is lost when the broker stops", to_do)


def _file_system(facts: Facts) -> Found:
    seen = facts.seen
    if seen.node.data_dir is None:
        return _ok("there is no data folder")
    if seen.file_system is None:
        return _unknown(
            f"the operating system does not report the file system of {seen.node.data_dir}",
            ("check with: findmnt -T FOLDER"),
        )
    kind = seen.file_system.type
    where = f"{seen.node.data_dir} is on {kind}, mounted at {seen.file_system.mounted_at}"
    if kind in _KEPT:
        return _ok(where)
    if kind in _IN_MEMORY:
        return _bad(
            f"{where}: it is in memory, and lost when the machine restarts",
            "use a folder on a disk",
        )
    if kind in _OF_CONTAINER:
        return _bad(
            f"{where}: it is a layer of a container, and deleted with the container", "mount a volume there"
        )
    if kind in _REMOTE or kind.startswith("fuse"):
        return _warn(
            f"{where}: syncs and locks depend on another program or machine",
            "use a disk of this machine, or a block device",
        )
    return _unknown(
        f"{where}, which may not store synced data reliably",
        "use ext4 or xfs on a disk of this machine",
    )


def _clock(facts: Facts) -> Found:
    clock = facts.seen.clock
    ahead = abs(clock.ahead_ms)
    if ahead >= CLOCK_WARN_MS:
        where = "ahead of" if clock.ahead_ms > 0 else "behind"
        return (
            State.BAD if ahead >= CLOCK_BAD_MS else State.WARN,
            (
                f"the machine's clock was changed since the broker started: it is {ahead / 1000:.1f} s "
                f"{where} the broker's time"
            ),
            "synchronise the clock (chrony, systemd-timesyncd), and restart the broker",
        )
    if clock.notes:
        return _warn(
            "; ".join(clock.notes),
            "synchronise all clocks (chrony, systemd-timesyncd), and restart the node whose clock was wrong",
        )
    if clock.synchronised is None:
        return _unknown(
            f"the clock was not changed since the broker started; {clock.told_by}",
            "check with: timedatectl",
        )
    if not clock.synchronised:
        return _warn(
            clock.told_by,
            "synchronise the clock (chrony, systemd-timesyncd); on a virtual machine the host may do this",
        )
    return _ok(f"the clock was not changed since the broker started; {clock.told_by}")


def _version(facts: Facts) -> Found:
    seen, cluster = facts.seen, facts.cluster
    told = f"broker {seen.node.version}"
    if seen.format is not None:
        told += f", data folder of format {seen.format}"
    known = {version for name, version in cluster.versions.items() if version}
    if len(known) > 1:
        nodes = ", ".join(f"{name} {version}" for name, version in sorted(cluster.versions.items()))
        return _warn(
            f"{told}; the nodes have different versions: {nodes}",
            "upgrade the older nodes, one at a time (docs/cluster.md)",
        )
    return _ok(told)


def _tracing(facts: Facts) -> Found:
    node = facts.seen.node
    told, to_do = [], []
    if facts.seen.rules.trace_frames:
        told.append("every frame is written to the log (trace_frames)")
        to_do.append("restart the broker without trace_frames")
    if traces := [trace.what for trace in node.traces if trace.ended is None and trace.what != "everything"]:
        told.append(f"frames are traced: {', '.join(traces)}")
        to_do.append("end each trace with: amqp10broker frames trace WHAT off")
    if node.recording is not None:
        told.append(f"flow events are recorded into {node.recording.folder}")
        to_do.append("end the recording with: amqp10broker record stop")
    if not told:
        return _ok("nothing is traced or recorded")
    return _warn("; ".join(told), "; ".join(to_do))


def _test_mode(facts: Facts) -> Found:
    if facts.seen.rules.test_mode:
        return _bad(
            "test_mode is on: clients can make the broker commit faults",
            ("restart the broker without test_mode"),
        )
    return _ok("test_mode is off")


def _cluster_quorum(facts: Facts) -> Found | None:
    cluster = facts.cluster
    if cluster.alone:
        return None
    if not cluster.critical:
        return _ok(f"every quorum queue and the metadata would have a majority without node '{cluster.me}'")
    shown = ", ".join(cluster.critical[:5])
    if len(cluster.critical) > 5:
        shown += f", and {len(cluster.critical) - 5} more"
    return _bad(
        f"without node '{cluster.me}' these would lose their majority: {shown}",
        "start the other nodes before you stop this one; see amqp10broker queue quorum-status",
    )


def _cluster_leaders(facts: Facts) -> Found | None:
    found = facts.cluster.leaderless
    if facts.cluster.alone:
        return None
    if found is None:
        return _ok("every quorum queue with a member here has a leader")
    evidence = f"{found.queues} queues have no leader, among them {', '.join(found.names)}: {found.reason}"
    if found.stuck:
        return _bad(evidence, f"start {', '.join(found.missing)}")
    return _warn(evidence, "wait until the elections end; see amqp10broker cluster status")


def _cluster_nodes(facts: Facts) -> Found | None:
    cluster = facts.cluster
    if cluster.alone:
        if facts.formed:
            return _warn("the cluster has one node: its data has no copy", "add two nodes (docs/cluster.md)")
        return None
    count = len(cluster.nodes)
    evidence = f"{count} nodes: {', '.join(cluster.nodes)}"
    if cluster.down:
        return _bad(
            f"{evidence}; these cannot be reached: {', '.join(cluster.down)}",
            "start them, or remove them with: amqp10broker cluster forget-node",
        )
    if count % 2 == 0:
        return _warn(
            f"{evidence}; an even number of nodes tolerates no more failures than one node less",
            "add a node, or remove one",
        )
    return _ok(evidence)


def _cluster_machines(facts: Facts) -> Found | None:
    cluster = facts.cluster
    if cluster.alone:
        return None
    homes: dict[str | None, list[str]] = {}
    for name, boot_id in ((cluster.me, facts.seen.boot_id), *((p.name, p.boot_id) for p in cluster.peers)):
        homes.setdefault(boot_id, []).append(name)
    unknown = [f"for {', '.join(cluster.silent)}: {_why_not(cluster)}"] if cluster.silent else []
    if homeless := homes.pop(None, []):
        unknown.append(f"for {', '.join(homeless)}: the operating system does not report it")
    shared = [names for names in homes.values() if len(names) > 1]
    if shared:
        told = "; ".join(f"{' and '.join(names)} run on the same machine" for names in shared)
        return _warn(told, "run each node on its own machine")
    if unknown:
        return _unknown(f"unknown {'; '.join(unknown)}", "run the check again when all nodes run")
    return _ok("each node runs on its own machine")


def _cluster_clocks(facts: Facts) -> Found | None:
    cluster = facts.cluster
    if cluster.alone:
        return None
    far = [peer for peer in cluster.peers if abs(peer.ahead_ms) >= CLOCK_WARN_MS]
    if far:
        told = ", ".join(
            f"{peer.name} is at least {abs(peer.ahead_ms) / 1000:.1f} s "
            f"{'ahead' if peer.ahead_ms > 0 else 'behind'}"
            for peer in far
        )
        worst = max(abs(peer.ahead_ms) for peer in far)
        return (
            State.BAD if worst >= CLOCK_BAD_MS else State.WARN,
            f"the clocks of the nodes differ from that of {cluster.me}: {told}",
            "synchronise all clocks (chrony, systemd-timesyncd), and restart the node whose clock was wrong",
        )
    if cluster.silent:
        return _unknown(
            f"unknown for {', '.join(cluster.silent)}: {_why_not(cluster)}",
            ("run the check again when all nodes run"),
        )
    return _ok(f"the clocks of the nodes differ by less than {CLOCK_WARN_MS / 1000:g} s")


def _cluster_traffic(facts: Facts) -> Found | None:
    if not facts.formed:
        return None
    if facts.seen.rules.cluster_tls:
        return _ok("nodes use TLS")
    plain = _outside(facts, "clustering")
    if not plain:
        return _ok("only this machine can reach the port for other nodes")
    return _warn(
        f"the traffic between nodes is not encrypted at {_at(plain)}",
        "set cluster_tls_cert_file and cluster_tls_ca_file",
    )


CHECKS: Final[Mapping[str, Callable[[Facts], Found | None]]] = {
    "default-user": _default_user,
    "anonymous-login": _anonymous_login,
    "tls": _tls,
    "http-api": _http_api,
    "metrics": _metrics,
    "certificates": _certificates,
    "open-files": _open_files,
    "memory": _memory,
    "disk": _disk,
    "alarms": _alarms,
    "data-folder": _data_folder,
    "file-system": _file_system,
    "clock": _clock,
    "version": _version,
    "tracing": _tracing,
    "test-mode": _test_mode,
    "cluster-quorum": _cluster_quorum,
    "cluster-leaders": _cluster_leaders,
    "cluster-nodes": _cluster_nodes,
    "cluster-machines": _cluster_machines,
    "cluster-clocks": _cluster_clocks,
    "cluster-traffic": _cluster_traffic,
}


def _outside(facts: Facts, *purposes: str) -> list[ListenerSeen]:
    # Listeners that other machines can connect to.
    return [each for each in facts.seen.listeners if each.purpose in purposes and not each.loopback]


def _at(listeners: Iterable[ListenerSeen]) -> str:
    return ", ".join(each.address for each in listeners)


def _why_not(cluster: ClusterSeen) -> str:
    return "they have not answered" if cluster.asked else "they were not asked"


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def _size(count: int) -> str:
    # In a unit that leaves few digits.
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@operation("doctor", "node", changes=False, command=Command("doctor", "--formatter json"))
async def doctor(
    caller: Caller, by_itself: Annotated[bool, "do not query the other nodes of the cluster"] = False
) -> dict[str, Any]:
    """Say what of this node is not as it should be in production.

    `by_itself`: facts that need other nodes are unknown then. Returns ``{"node": name, "at_ms": int,
    "boot_id": str | None, "checks": [{"check", "state", "evidence", "to_do"}]}``, the worst first; ``at_ms``
    is the node's time, and nodes of one machine have the same ``boot_id``.
    """
    node = caller.node
    cluster = node.cluster

    before_ms = node.now_ms()
    asked = [] if by_itself else caller.other_nodes()
    answers = await cluster.run_at_each(asked, "doctor", {"by_itself": True}, None)
    after_ms = node.now_ms()
    seen = await node.inspect()
    named = caller.node_names()
    peers = tuple(_peers(answers, named, before_ms, after_ms))
    alarms = cluster.alarms().items()
    facts = Facts(
        seen=seen,
        cluster=replace(_cluster(caller, cluster), peers=peers, asked=not by_itself),
        alarms={named.get(number, f"node {number}"): tuple(on) for number, on in alarms if on},
        durable_queues=sum(queue.durable and not queue.exclusive for queue in caller.catalog),
        streams=sum(queue.kind.own_files and queue.home == cluster.number for queue in caller.catalog),
        formed=bool(caller.catalog.nodes),
    )
    return {
        "node": named[cluster.number],
        "at_ms": seen.at_ms,
        "boot_id": seen.boot_id,
        "checks": [document(each) for each in findings(facts)],
    }


def _cluster(caller: Caller, cluster: ClusterNode) -> ClusterSeen:
    named = caller.node_names()
    return ClusterSeen(
        me=named[cluster.number],
        nodes=tuple(sorted(named.values())),
        down=tuple(sorted(name for number, name in named.items() if not caller.runs(number))),
        critical=tuple(each["readable_name"] for each in critical_groups(caller, cluster)),
        versions={node.name: node.version for node in caller.catalog.nodes.values()},
        leaderless=cluster.leaderless(),
    )


def _peers(
    answers: Mapping[int, Any], named: Mapping[int, str], before_ms: int, after_ms: int
) -> Iterator[PeerSeen]:
    for number, told in answers.items():
        at_ms = int(told["at_ms"])
        # The other node may have read its clock at any moment between the two.
        ahead_ms = max(0, at_ms - after_ms) + min(0, at_ms - before_ms)
        yield PeerSeen(named[number], told["boot_id"], ahead_ms)


@operation("upgrade-check", "upgrade", changes=False)
async def upgrade_check(
    caller: Caller, to: Annotated[str, "version of RabbitMQ", Check(choices=VERSIONS)] = VERSIONS[-1]
) -> dict[str, Any]:
    """Say which clients, queues and policies use what a version of RabbitMQ refuses or does otherwise.

    Clients are those that are connected now, to any node. Returns ``{"to": version, "findings": documents of
    `emulation.UpgradeFinding`, the worst first, "quorum_queues": names}``.
    """
    upgrade = Upgrade(to)
    for queue in caller.catalog:
        if not queue.kind.volatile:
            _queue(upgrade, queue)
    for vhost in caller.catalog.vhosts.values():
        for policy in vhost.policies:
            if "queue-master-locator" in policy.definition:
                of = "policy", policy.name, vhost.name
                upgrade.use(MASTER_LOCATOR, of, "it has the key queue-master-locator")
    for connection in await connections.run(caller, "everywhere"):
        for row, what in _uses(connection):
            upgrade.use(row, ("client", _name(connection), connection["vhost"]), what)
    quorum = [queue.name for queue in caller.catalog if queue.kind.replicated]
    return {"to": to, "findings": [document(each) for each in upgrade.findings()], "quorum_queues": quorum}


def _queue(upgrade: Upgrade, queue: DeclaredQueue) -> None:
    of = "queue", queue.name, queue.vhost
    for feature in deprecated_features(queue):
        argument = "it has the argument x-queue-master-locator"
        upgrade.use(feature, of, argument if feature == MASTER_LOCATOR else "neither durable nor exclusive")
    if not queue.kind.replicated:
        return
    settings, limit = queue.effective.settings, queue.effective.settings.delivery_limit
    bounded = settings.max_length is not None or settings.max_length_bytes is not None
    stated = "x-delivery-limit" in queue.arguments or "delivery-limit" in queue.effective.definition
    drops = bounded and settings.overflow is Overflow.DROP_HEAD
    returned = limit is not None and queue.counted()["requeued"]
    for row, applies, what in (
        ("delivery_limit", not stated, f"it sets no delivery limit; the limit is {limit or 'none'}"),
        (
            "limit_counts_failed",
            returned,
            f"its clients return messages; it delivers each at most {limit} times",
        ),
        ("unlimited_returns_last", stated and limit is None, "it has no delivery limit"),
        (
            "drops_next",
            drops,
            ("it drops its head when it is full; with priorities another message is dropped"),
        ),
    ):
        if applies:
            upgrade.use(row, of, what, **{"delivery_limit": DELIVERY_LIMIT, **queue.rules})


def _uses(connection: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for channel in connection["channels"]:
        if channel["global_prefetch"]:
            limit = channel["global_prefetch"]
            yield GLOBAL_QOS, f"basic.qos with global=true on channel {channel['number']}: {limit} messages"
    for session in connection["sessions"]:
        for link in session["links"]:
            if link["address"] and not link["address"].startswith("/") and link["queue"] == link["address"]:
                yield ADDRESS_V1, f"link '{link['name']}' has the address '{link['address']}'"


def _name(connection: Mapping[str, Any]) -> str:
    name = connection["container_id"] or connection["client"].get("connection_name") or "client"
    return f"{name} of user '{connection['user']}' at {connection['peer']}"
