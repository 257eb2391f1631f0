"""Facts that a running node determines about itself and its machine, for `checklist`.

Unknown facts are None.
"""

from __future__ import annotations

from collections.abc import Iterator

from amqp10broker.dataclass import dataclass
from amqp10broker.operations.snapshot import NodeView


@dataclass(frozen=True, slots=True)
class ListenerSeen:
    purpose: str
    address: str
    tls: bool
    loopback: bool


@dataclass(frozen=True, slots=True)
class CertificateSeen:
    """A file with certificates in its present state. `ends_at_ms`: when the first of its certificates
    expires, since 1970; None: the file is not readable. `changed`: it was written after the broker had
    started, and so after the broker had read it.
    """

    setting: str
    path: str
    ends_at_ms: int | None
    changed: bool


@dataclass(frozen=True, slots=True)
class ClockSeen:
    """The machine's clock.

    Attributes:
        ahead_ms: difference to the time that the broker counts since its start, after a change of the clock.
        synchronised: whether the system reports a synchronisation; None: it reports nothing.
        notes: faults of this clock, of other nodes' and of the time of queues, a sentence each.
    """

    ahead_ms: int
    synchronised: bool | None
    told_by: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileSystem:
    """The file system of a folder."""

    type: str
    mounted_at: str
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Rules:
    """The configuration of logins and limits. `http_connection_max`: of HTTP; 0: no HTTP."""

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
    """All facts that a node has by itself.

    Attributes:
        guest: the user guest has the password guest; None: the user does not exist.
        files_max: limit of open files; None: any number.
        file_system: of the data folder; None without one, too.
        format: of the data folder; None without one.
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


def mount_of(path: str, mounts: str) -> tuple[str, str] | None:
    """Return type and mount point of the file system of a path. `mounts`: content of
    ``/proc/self/mountinfo``, proc_pid_mountinfo(5).
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
