"""A node looks at itself and at its machine, for `operations.doctor`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from amqp10broker import portable
from amqp10broker.auth.tls import first_end_ms
from amqp10broker.config import Config
from amqp10broker.operations.inspection import (
    CertificateSeen,
    ClockSeen,
    FileSystem,
    Inspection,
    ListenerSeen,
    Rules,
    mount_of,
)
from amqp10broker.runtime.admin.node import Administered
from amqp10broker.runtime.connections import login
from amqp10broker.runtime.connections.sockets import Address, is_loopback, peer_text
from amqp10broker.runtime.observe import meters
from amqp10broker.storage.folder import FORMAT

CERTIFICATES: Final = ("tls_certificate", "tls_ca", "cluster_tls_cert_file", "cluster_tls_ca_file")
GUEST: Final = "guest"
STA_UNSYNC: Final = 0x0040
"""Of adjtimex(2)."""
TIMESYNCD: Final = "/run/systemd/timesync/synchronized"
"""systemd-timesyncd makes it when it has set the clock for the first time."""
_TIMEX_LONGS: Final = 64
"""More than struct timex has of them."""
_STATUS_AT: Final = 5
"""Where its field status is, in longs."""


async def inspect(broker: Administered) -> Inspection:
    """All that a node finds; what reads files is done in a thread."""
    at_ms = broker.clock.now_ms()
    ahead_ms = _wall_ms() - at_ms
    node, config = broker.node_view(), broker.config
    began_ms = at_ms - int(node.uptime_s * 1000)
    return Inspection(
        node=node,
        rules=_rules(broker),
        listeners=tuple(_listeners(broker)),
        guest=await _guest(broker),
        certificates=await login.run_slow(partial(certificates, config, began_ms, ahead_ms)),
        clock=_clock(ahead_ms, tuple(broker.clock_watch.notes().values())),
        at_ms=at_ms,
        boot_id=meters.read_text("/proc/sys/kernel/random/boot_id").strip() or None,
        files_open=portable.open_files(),
        files_max=portable.limit("RLIMIT_NOFILE"),
        memory_total_bytes=portable.machine_memory(),
        memory_allowed_bytes=meters.memory_total(meters.read_text),
        file_system=await login.run_slow(partial(_file_system, node.data_dir)),
        format=None if broker.data is None else FORMAT,
    )


def _wall_ms() -> int:
    return int(time.time() * 1000)


def _rules(broker: Administered) -> Rules:
    config = broker.config
    return Rules(
        passwords="internal" in config.auth_backends,
        plain_needs_tls=config.plain_needs_tls,
        loopback_users=config.loopback_users,
        anonymous_user=broker.authenticator.anonymous_user,
        cluster_tls=config.cluster_tls_cert_file is not None,
        connection_max=config.connection_max,
        http_connection_max=config.http_connection_max if broker.http_addresses else 0,
        trace_frames=config.trace_frames,
        test_mode=config.test_mode,
    )


def _listeners(broker: Administered) -> Iterator[ListenerSeen]:
    config = broker.config
    between_nodes = [port for protocol, _, port in broker.as_member.listeners() if protocol == "clustering"]
    # Nodes come in where clients do, at a port of their own.
    nodes = [(host, port) for host, _ in broker.addresses for port in between_nodes]
    found: Iterable[tuple[str, Iterable[Address], bool]] = (
        ("amqp", broker.addresses, False),
        ("amqp", broker.tls_addresses, True),
        ("http", broker.http_addresses, config.http_tls),
        ("metrics", broker.metrics_addresses, config.http_tls),
        ("clustering", nodes, config.cluster_tls_cert_file is not None),
    )
    for purpose, addresses, tls in found:
        for address in addresses:
            yield ListenerSeen(purpose, peer_text(address), tls, is_loopback(address[0]))


async def _guest(broker: Administered) -> bool | None:
    if broker.catalog.users.find(GUEST) is None:
        return None
    password = GUEST.encode()
    if broker.passwords.quick(GUEST, password):
        return True
    return bool(await login.run_slow(broker.passwords.slow(GUEST, password)))


def certificates(config: Config, began_ms: int = 0, ahead_ms: int = 0) -> tuple[CertificateSeen, ...]:
    """The files of the configuration."""
    found = []
    for setting in CERTIFICATES:
        path = getattr(config, setting)
        if path is None:
            continue
        try:
            changed = os.stat(path).st_mtime * 1000 - ahead_ms > began_ms
        except OSError:
            changed = True  # it was there at the start
        found.append(CertificateSeen(setting, path, first_end_ms(meters.read_text(path)), changed))
    return tuple(found)


def _clock(ahead_ms: int, notes: tuple[str, ...] = ()) -> ClockSeen:
    status = _clock_status()
    if status is not None and status & STA_UNSYNC:
        told = "the kernel knows of nothing that keeps the clock right (adjtimex says STA_UNSYNC)"
        return ClockSeen(ahead_ms, False, told, notes)
    if status is not None:
        return ClockSeen(ahead_ms, True, "the kernel says that something keeps it right (adjtimex)", notes)
    if os.path.exists(TIMESYNCD):
        return ClockSeen(ahead_ms, True, "systemd-timesyncd has set it", notes)
    return ClockSeen(ahead_ms, None, "the system does not say whether something keeps it right", notes)


def _clock_status() -> int | None:
    import ctypes  # milliseconds of the start, and few ask

    timex = (ctypes.c_long * _TIMEX_LONGS)()
    library = portable.libc()
    if not hasattr(library, "adjtimex") or library.adjtimex(timex) < 0:
        return None
    return ctypes.c_int.from_buffer(timex, _STATUS_AT * ctypes.sizeof(ctypes.c_long)).value


def _file_system(folder: str | None) -> FileSystem | None:
    if folder is None:
        return None
    found = mount_of(os.path.realpath(folder), meters.read_text("/proc/self/mountinfo"))
    if found is None:
        return None
    kind, at = found
    try:
        return FileSystem(kind, at, shutil.disk_usage(folder).total)
    except OSError:
        return FileSystem(kind, at, None)
