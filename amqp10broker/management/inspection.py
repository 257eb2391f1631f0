"""What a running node finds when it looks at itself and at its machine: frozen records for `checklist`.

What cannot be found out is None.
"""

from __future__ import annotations

from collections.abc import Iterator

from amqp10broker.dataclass import dataclass
from amqp10broker.management.snapshot import NodeView


@dataclass(frozen=True, slots=True)
class ListenerSeen:
    """A socket that others may connect to.

    Attributes:
        purpose: ``amqp``, ``http``, ``metrics`` or ``clustering``.
        address: ``host:port``.
        tls: whether it speaks TLS.
        loopback: whether this machine alone can reach it.
    """

    purpose: str
    address: str
    tls: bool
    loopback: bool


@dataclass(frozen=True, slots=True)
class CertificateSeen:
    """A file with certificates, as it is on the disk now.

    Attributes:
        setting: that names it.
        path: of the file.
        ends_at_ms: when the first of its certificates ends, since 1970; None: the file was not understood.
        changed: it was written after the broker had started, and so after the broker had read it.
    """

    setting: str
    path: str
    ends_at_ms: int | None
    changed: bool


@dataclass(frozen=True, slots=True)
class ClockSeen:
    """The machine's clock.

    Attributes:
        ahead_ms: by how much it is ahead of the time that the broker counts since its start: somebody has
            set it meanwhile.
        synchronised: whether the system says that something keeps it right; None: it says nothing.
        told_by: what says so.
        notes: what is wrong with it, with other nodes' and with the time of queues, a sentence each.
    """

    ahead_ms: int
    synchronised: bool | None
    told_by: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileSystem:
    """Where a folder is.

    Attributes:
        type: as the system calls it: ``ext4``, ``tmpfs``, ``nfs4``.
        mounted_at: the folder at which it begins.
        total_bytes: its size.
    """

    type: str
    mounted_at: str
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says about who may come, and how many.

    Attributes:
        passwords: whether users log in with passwords that the broker has.
        plain_needs_tls: whether passwords are taken on TLS connections only.
        loopback_users: names that may log in from this machine only.
        anonymous_user: as whom SASL ANONYMOUS logs in; empty: it is off.
        cluster_tls: whether nodes speak TLS.
        connection_max: connections of clients.
        http_connection_max: of HTTP; 0: none is served.
        trace_frames: whether all frames go to the log.
        test_mode: whether faults may be injected.
    """

    passwords: bool
    plain_needs_tls: bool
    loopback_users: tuple[str, ...]
    anonymous_user: str
    cluster_tls: bool
    connection_max: int
    http_connection_max: int
    trace_frames: bool
    test_mode: bool


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that a node knows by itself.

    Attributes:
        node: the process.
        rules: of the configuration.
        listeners: of every kind.
        guest: whether user guest is there with the password guest; None: there is no such user.
        certificates: files with them.
        clock: of the machine.
        at_ms: the broker's time, since 1970.
        boot_id: another one for each start of each machine.
        files_open: of the process.
        files_max: that it may have open; None: any number.
        memory_total_bytes: of the machine.
        memory_allowed_bytes: that the process may use: the machine's, or less by a limit.
        file_system: of the data folder; None without one, too.
        format: of the data folder; None without one.
        formats: the one that this broker writes.
    """

    node: NodeView
    rules: Rules
    listeners: tuple[ListenerSeen, ...]
    guest: bool | None
    certificates: tuple[CertificateSeen, ...]
    clock: ClockSeen
    at_ms: int
    boot_id: str | None
    files_open: int | None
    files_max: int | None
    memory_total_bytes: int | None
    memory_allowed_bytes: int | None
    file_system: FileSystem | None
    format: int | None
    formats: int


def mount_of(path: str, mounts: str) -> tuple[str, str] | None:
    """Type and folder of the file system that a path is on.

    Args:
        path: absolute, without symbolic links.
        mounts: ``/proc/self/mountinfo``, see proc_pid_mountinfo(5).
    """
    best = None
    for at, kind in _mounts(mounts):
        # Of two at one place the later one covers the other.
        if (path == at or path.startswith(at.rstrip("/") + "/")) and (
            best is None or len(at) >= len(best[1])
        ):
            best = (kind, at)
    return best


def _mounts(written: str) -> Iterator[tuple[str, str]]:
    for line in written.splitlines():
        front, dash, back = line.partition(" - ")
        fields, kinds = front.split(" "), back.split(" ")
        if dash and len(fields) >= 6:
            # Blanks, tabs and line breaks in a name are written as three octal digits.
            at = fields[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
            yield at, kinds[0]
