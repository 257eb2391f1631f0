"""A running broker looks at itself and at its machine, and says what is not as it should be."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
import trio

from amqp10broker import portable
from amqp10broker.operations.doctor import CHECKS
from amqp10broker.runtime.admin import node
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.observe import meters
from tests.support.admin_requests import ask
from tests.support.certificates import Certificates
from tests.support.declaring import declare
from tests.support.trioclient import quiet_config


async def doctor(broker: Broker) -> dict[str, tuple[str, str]]:
    checks = (await ask(broker, "doctor"))["checks"]
    return {row["check"]: (row["state"], row["evidence"]) for row in checks}


async def found(**settings: Any) -> dict[str, tuple[str, str]]:
    """Return the doctor's rows for these settings, with a durable queue and two streams."""
    async with Broker(quiet_config(**settings)) as broker:
        declare(broker.catalog, "/", "q")
        for name in ("s", "t"):
            declare(broker.catalog, "/", name, arguments={"x-queue-type": "stream"})
        return await doctor(broker)


async def test_a_broker_as_it_comes_is_not_one_for_production(verify_passwords_at_once: None) -> None:
    """Each check that applies has a row, and the bad ones are marked so."""
    said = await found()
    assert {name for name in CHECKS if name != "certificates" and not name.startswith("cluster-")} == set(
        said
    )
    assert said["default-user"] == (
        "warn",
        (
            "user 'guest' has the password 'guest', for clients on this machine and those that connect "
            "through a proxy on it"
        ),
    )
    assert said["data-folder"][0] == "bad"
    assert said["data-folder"][1].startswith("3 queues are declared durable")
    assert said["tls"][0] == said["alarms"][0] == said["test-mode"][0] == "ok"


async def test_what_can_be_reached_from_elsewhere_is_told_with_its_address(
    verify_passwords_at_once: None,
) -> None:
    settings: dict[str, Any] = {"host": "0.0.0.0", "http_port": 0, "prometheus_port": 0}
    async with Broker(quiet_config(**settings, loopback_users=(), test_mode=True)) as broker:
        said = await doctor(broker)
        at = {
            "default-user": broker.addresses,
            "anonymous-login": broker.addresses,
            "tls": broker.addresses,
            "http-api": broker.http_addresses,
            "metrics": broker.metrics_addresses,
        }
    for check, addresses in at.items():
        assert f"0.0.0.0:{addresses[0][1]}" in said[check][1]
    assert {check: said[check][0] for check in at} == dict.fromkeys(at, "bad") | {"metrics": "warn"}
    assert said["test-mode"][0] == "bad"


async def test_the_folder_and_its_file_system_are_looked_at(
    tmp_path: Path, verify_passwords_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real path counts: a link does not hide it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    mounts = f"1 1 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path / 'real'} rw - tmpfs x rw\n"
    real = meters.read_text
    monkeypatch.setattr(
        meters, "read_text", lambda path: mounts if path.endswith("mountinfo") else real(path)
    )
    said = await found(data_dir=str(tmp_path / "link" / "data"))
    assert said["data-folder"][0] == "ok"
    assert said["file-system"][0] == "bad"
    assert f"is on tmpfs, mounted at {tmp_path / 'real'}" in said["file-system"][1]
    assert "data folder of format" in said["version"][1]
    assert "are free at" in said["disk"][1]


async def test_certificates_are_read_with_their_dates(tmp_path: Path, verify_passwords_at_once: None) -> None:
    """The files are read as they are now: one replaced after the start is in use only after a restart."""
    made = Certificates.make(tmp_path)
    settings = {"tls_certificate": made.server, "tls_key": made.server_key}
    async with Broker(quiet_config(**settings)) as broker:
        state, evidence = (await doctor(broker))["certificates"]
        assert state == "ok"
        assert evidence.startswith(f"tls_certificate {made.server} expires 3000-01-01")
        later = broker.clock.now_ms() / 1000 + 60
        os.utime(made.server, (later, later))
        state, evidence = (await doctor(broker))["certificates"]
        assert state == "warn"
        assert "the file has changed since the broker read it" in evidence
        await trio.Path(made.server).write_text("no certificate")
        os.utime(made.server, (later, later))  # the broker's clock stands while the machine's goes on
        assert "cannot be read; the file has changed" in (await doctor(broker))["certificates"][1]
        await trio.Path(made.server).unlink()
        assert "cannot be read; the file has changed" in (await doctor(broker))["certificates"][1]


async def test_guest_with_another_password_or_none_at_all_is_no_default_user(
    verify_passwords_at_once: None,
) -> None:
    """The password is verified as at a login."""
    async with Broker(quiet_config()) as broker:
        for op, given, said in (
            ("change-password", {"password": "another"}, "is not 'guest'"),
            ("change-password", {"password": "guest"}, "has the password 'guest'"),
            ("delete-user", {}, "there is no user 'guest'"),
        ):
            await ask(broker, op, user="guest", **given)
            assert said in (await doctor(broker))["default-user"][1]


async def test_traces_left_on_are_told(verify_passwords_at_once: None, tmp_path: Path) -> None:
    async with Broker(quiet_config()) as broker:
        await ask(broker, "trace", what="guest", on=True, file=str(tmp_path / "frames"))
        assert (await doctor(broker))["tracing"] == ("warn", "frames are traced: guest")


async def test_a_clock_that_was_set_since_the_start_is_told(
    verify_passwords_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker keeps the time of its start."""
    monkeypatch.setattr(node, "_clock_status", lambda: 0)
    async with Broker(quiet_config()) as broker:
        for set_ms, state, said in (
            (0, "ok", "was not changed since the broker started"),
            (1_500, "warn", "1.5 s ahead of the broker's time"),
            (-40_000, "bad", "40.0 s behind the broker's time"),
        ):
            monkeypatch.setattr(node, "_wall_ms", lambda set_ms=set_ms: broker.clock.now_ms() + set_ms)
            found = (await doctor(broker))["clock"]
            assert found[0] == state
            assert said in found[1]


@pytest.mark.parametrize(
    ("status", "by_timesyncd", "synchronised"),
    [(0, False, True), (node.STA_UNSYNC, True, False), (None, True, True), (None, False, None)],
)
def test_the_kernel_says_whether_its_clock_is_kept_right(
    status: int | None, by_timesyncd: bool, synchronised: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the kernel gives no answer, systemd-timesyncd may; else it is unknown."""
    monkeypatch.setattr(node, "_clock_status", lambda: status)
    monkeypatch.setattr(node, "TIMESYNCD", "/" if by_timesyncd else "/nowhere/at/all")
    assert node._clock(0).synchronised is synchronised


def test_files_are_counted() -> None:
    before = portable.open_files()
    with open(os.devnull):
        after = portable.open_files()
    assert before is None or after == before + 1
    assert portable.limit("RLIMIT_NOFILE") in (None, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
