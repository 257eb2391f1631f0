"""The watch over memory and disk, with a meter of the test's: who is told, when it measures, what shows."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from amqp10broker.errors import ConfigError
from amqp10broker.operations.snapshot import document
from amqp10broker.protocols.amqp091.methods import ConnectionBlocked, ConnectionUnblocked
from amqp10broker.protocols.amqp10.performatives import Begin, Flow
from amqp10broker.runtime.broker import Broker
from tests.support.admin_requests import ask, asked
from tests.support.http_user import http_user
from tests.support.rawframes import begin
from tests.support.trioclient import connect, quiet_config, settle_down
from tests.support.trioclient091 import connect091, message

MB = 1_000_000
WATERMARK = "vm_memory_high_watermark"


class FakeMeter:
    """Says what the test wants, and counts how often it is asked."""

    def __init__(self) -> None:
        self.used: int | None = 50 * MB
        self.total: int | None = 1_000 * MB
        self.free: int | None = 10_000 * MB
        self.held_free = 0
        self.asked = 0
        self.given_back = 0
        self.paths: set[str] = set()
        self.fault: Exception | None = None
        self.quiet = False
        self._busy_s = 0.0

    def busy_s(self) -> float:
        if not self.quiet:
            self._busy_s += 1_000
        return self._busy_s

    def memory_used(self) -> int | None:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return self.used

    def memory_total(self) -> int | None:
        return self.total

    def disk_free(self, path: str) -> int | None:
        self.paths.add(path)
        return self.free

    def give_back(self) -> None:
        self.given_back += 1
        if self.used is not None:
            self.used -= self.held_free
        self.held_free = 0


@pytest.fixture
def meter() -> FakeMeter:
    return FakeMeter()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory be given back without a minimum interval."""
    monkeypatch.setattr("amqp10broker.runtime.observe.resource_monitor.GIVING_BACK_SHARE", 0)


@asynccontextmanager
async def watched(meter: FakeMeter, **settings: Any) -> AsyncIterator[Broker]:
    async with Broker(quiet_config(**settings), meter=meter) as broker:
        yield broker


def messages_of_alarms(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Only the monitor's own messages count: other code in this process may log as well."""
    return [record.getMessage() for record in caplog.records if record.name == "amqp10broker.alarms"]


async def pass_time(seconds: float = 1.1) -> None:
    """Wait for a look of the monitor and for its effects."""
    await trio.sleep(seconds)
    await settle_down()


# --- who is told --------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "resource_alarm_after_session_begin", "resource_alarm_before_session_begin"
)
async def test_memory_above_the_watermark_shuts_windows_until_it_has_fallen(meter: FakeMeter) -> None:
    """AMQP 1.0: incoming-window is 0, for new sessions too, and 400 when there is room again."""
    async with watched(meter) as broker:
        client = await connect(broker).open()
        meter.used = 600 * MB + 1
        await pass_time()
        assert [(type(each.body), each.body.incoming_window) for each in await client.idle()] == [(Flow, 0)]
        await client.send(begin(7))
        assert (await client.expect(Begin, channel=7)).incoming_window == 0
        meter.used = 580 * MB  # below the watermark, not yet below its end
        await pass_time()
        assert await client.idle() == []
        meter.used = 570 * MB
        await pass_time()
        assert sorted((each.channel, each.body.incoming_window) for each in await client.idle()) == [
            (0, 400),
            (7, 400),
        ]


async def test_memory_and_disk_together_and_the_last_one_lets_go(meter: FakeMeter) -> None:
    """AMQP 0-9-1: connection.blocked has both reasons; unblocked comes once."""
    async with watched(meter, disk_free_limit="1GB") as broker:
        client = await connect091(broker).open()
        meter.used, meter.free = 700 * MB, 999 * MB
        await pass_time()
        assert await client.idle() == []
        await client.send(1, message(1, "q", b"1"))
        assert await client.expect(ConnectionBlocked) == ConnectionBlocked("low on memory & low on disk")
        meter.used = 100 * MB
        await pass_time()
        assert await client.idle() == []
        assert broker.alarms == {"disk"}
        late = await connect091(broker).open()
        await late.send(1, message(1, "q", b"1"))
        assert await late.expect(ConnectionBlocked) == ConnectionBlocked("low on disk")
        meter.free = 1_050 * MB
        await pass_time()
        await client.expect(ConnectionUnblocked)
        await late.expect(ConnectionUnblocked)


async def test_an_alarm_at_the_start_is_on_before_anybody_connects(meter: FakeMeter) -> None:
    """The recovered data may already be too much."""
    meter.used = 700 * MB
    async with watched(meter) as broker:
        assert broker.alarms == {"memory"}
        meter.used = 1 * MB
        await pass_time()
        assert not broker.alarms, "an alarm is looked after while nobody is connected, too"


# --- when it measures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("over_http", [False, True])
async def test_it_measures_each_second_while_anybody_is_connected_and_not_otherwise(
    meter: FakeMeter, over_http: bool
) -> None:
    """An idle broker sleeps; a connection wakes it. HTTP requests take memory before a login."""
    async with watched(meter) as broker:
        await pass_time(1_000)
        assert meter.asked == 1
        meter.used = 700 * MB
        async with http_user(broker) if over_http else (await connect(broker).open()).stream:
            await pass_time(0.01)
            assert broker.alarms == {"memory"}
            meter.used = 50 * MB
            await pass_time()
            assert not broker.alarms
            meter.asked = 0
            await pass_time(10)
            assert 9 <= meter.asked <= 11
        await pass_time(1)
        meter.asked = 0
        await pass_time(1_000)
        assert meter.asked <= 1


async def test_it_measures_ten_times_as_often_near_a_limit(meter: FakeMeter) -> None:
    """Memory can grow by 250 MB in a second."""
    async with watched(meter) as broker:
        await connect(broker).open()
        meter.used = 599 * MB
        await pass_time()
        meter.asked = 0
        await pass_time(10)
        assert 95 <= meter.asked <= 105


async def test_what_is_only_held_free_is_given_back_before_anybody_is_held(
    meter: FakeMeter, no_pause: None
) -> None:
    """The C library keeps freed memory: this alone raises no alarm, and its release ends an alarm."""
    async with watched(meter) as broker:
        await connect(broker).open()
        await pass_time()
        assert meter.given_back == 0
        meter.used, meter.held_free = 700 * MB, 200 * MB
        await pass_time()
        assert meter.given_back == 1
        assert not broker.alarms
        meter.used = 700 * MB
        await pass_time()
        assert broker.alarms == {"memory"}
        meter.held_free = 600 * MB  # somebody consumed: freed, and still resident
        await pass_time()
        assert meter.used == 100 * MB
        assert not broker.alarms
        given_back = meter.given_back
        await pass_time(10)
        assert meter.given_back == given_back


async def test_giving_back_takes_a_twentieth_of_the_time_at_most(
    meter: FakeMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It blocks the broker, so the next waits for 20 times as long as the last took."""
    now = 0.0
    monkeypatch.setattr("amqp10broker.runtime.observe.resource_monitor.time.perf_counter", lambda: now)

    def slowly() -> None:
        nonlocal now
        meter.given_back += 1
        now += 0.1

    monkeypatch.setattr(meter, "give_back", slowly)
    async with watched(meter) as broker:
        meter.used = 700 * MB
        broker.resource_monitor.check()
        assert meter.given_back == 1
        now = 2.0
        broker.resource_monitor.check()
        assert meter.given_back == 1
        now = 2.2
        broker.resource_monitor.check()
        assert meter.given_back == 2


async def test_what_cannot_be_measured_changes_nothing_and_is_said_once(
    meter: FakeMeter, caplog: pytest.LogCaptureFixture
) -> None:
    """The alarm is neither raised nor cleared; the log has the beginning and the end."""
    caplog.set_level(logging.INFO, "amqp10broker.alarms")
    async with watched(meter) as broker:
        await connect(broker).open()
        meter.used = 700 * MB
        await pass_time()
        meter.used = None
        await pass_time(5)
        assert broker.alarms == {"memory"}
        meter.used = 1 * MB
        await pass_time()
        assert not broker.alarms
    said = messages_of_alarms(caplog)
    assert len([text for text in said if text.startswith("cannot be measured")]) == 1
    assert len([text for text in said if text.startswith("can be measured again")]) == 1


async def test_a_fault_in_the_watch_ends_nothing(meter: FakeMeter, caplog: pytest.LogCaptureFixture) -> None:
    """The fault is logged, alarms stay, the watch goes on."""
    async with watched(meter) as broker:
        client = await connect(broker).open()
        meter.fault = RuntimeError("no")
        await pass_time()
        meter.fault = None
        meter.used = 700 * MB
        await pass_time()
        assert broker.alarms == {"memory"}
        assert [each.body.incoming_window for each in await client.idle()] == [0]
    assert "memory and disk could not be watched by a fault in the broker" in caplog.text


# --- limits -------------------------------------------------------------------------------------------


async def test_without_a_data_folder_there_is_a_disk_alarm_only_if_asked_for(meter: FakeMeter) -> None:
    """A broker in memory needs no disk; a given limit applies to the folder in which it runs."""
    meter.free = 0
    async with watched(meter) as broker:
        assert not broker.alarms
        assert document(broker.resource_monitor.view())["disk"]["limit_bytes"] is None
        broker.resource_monitor.set_limit("disk_free_limit", "1", source="test")
        assert broker.alarms == {"disk"}
    async with watched(meter, disk_free_limit="mem_relative 1.5") as broker:
        assert document(broker.resource_monitor.view())["disk"]["limit_bytes"] == 1_500 * MB
        assert broker.alarms == {"disk"}
    assert meter.paths == {"."}


async def test_with_a_data_folder_its_disk_is_watched(meter: FakeMeter, tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    async with watched(meter, data_dir=folder) as broker:
        shown = document(broker.resource_monitor.view())["disk"]
        assert (shown["setting"], shown["limit_bytes"], shown["path"]) == ("50MB", 50 * MB, folder)
        meter.free = 50 * MB - 1
        broker.resource_monitor.check()
        assert broker.alarms == {"disk"}
    assert meter.paths == {folder}


async def test_a_share_of_an_unknown_memory_is_no_limit_and_said(
    meter: FakeMeter, caplog: pytest.LogCaptureFixture
) -> None:
    meter.total = None
    async with watched(meter) as broker:
        meter.used = 10**15
        broker.resource_monitor.check()
        assert not broker.alarms
        assert "give the limit as an amount" in caplog.text
        assert broker.resource_monitor.set_limit("vm_memory_high_watermark", "1GB", source="test") == 10**9
        assert broker.alarms == {"memory"}


async def test_a_limit_set_while_running_is_judged_by_at_once(meter: FakeMeter) -> None:
    async with watched(meter) as broker:
        client = await connect(broker).open()
        assert broker.resource_monitor.set_limit(WATERMARK, "absolute 40MB", source="test") == 40 * MB
        assert [each.body.incoming_window for each in await client.idle()] == [0]
        meter.total = 2_000 * MB
        assert broker.resource_monitor.set_limit(WATERMARK, "0.5", source="test") == 1_000 * MB
        assert [each.body.incoming_window for each in await client.idle()] == [400]
        assert broker.config.vm_memory_high_watermark == "0.5"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("vm_memory_high_watermark", "1.5", "must be a share of memory from 0 to 1"),
        ("vm_memory_high_watermark", 0.5, "is no text"),
        ("disk_free_limit", "lots", "must be an amount such as 50MB"),
        ("disk_free_limit", None, "is no text"),
        ("port", "1", "must name one of vm_memory_high_watermark, disk_free_limit"),
    ],
)
async def test_a_bad_limit_changes_nothing(meter: FakeMeter, name: str, value: object, problem: str) -> None:
    async with watched(meter) as broker:
        before = broker.config
        with pytest.raises(ConfigError, match=problem):
            broker.resource_monitor.set_limit(name, value, source="test")
        assert broker.config is before


# --- what is shown ------------------------------------------------------------------------------------


async def test_status_shows_figures_limits_and_since_when(meter: FakeMeter) -> None:
    async with watched(meter, disk_free_limit="1GB") as broker:
        meter.used = 700 * MB
        broker.resource_monitor.check()
        began_ms = broker.clock.now_ms()
        await trio.sleep(12.5)
        shown = broker.status()["broker"]
        assert shown["alarms"] == ["memory"]
        assert shown["resources"] == {
            "memory": {
                "used_bytes": 700 * MB,
                "total_bytes": 1_000 * MB,
                "setting": "0.6",
                "limit_bytes": 600 * MB,
                "alarm_ends_at_bytes": 570 * MB,
                "alarm": True,
                "causes": ["measured"],
                "since": datetime.fromtimestamp(began_ms / 1000, UTC).isoformat(timespec="seconds"),
                "on_for_s": 12.5,
            },
            "disk": {
                "free_bytes": 10_000 * MB,
                "path": ".",
                "setting": "1GB",
                "limit_bytes": 1_000 * MB,
                "alarm_ends_at_bytes": 1_050 * MB,
                "alarm": False,
                "causes": [],
                "since": None,
                "on_for_s": None,
            },
        }


async def test_changes_are_logged_with_the_figures(
    meter: FakeMeter, caplog: pytest.LogCaptureFixture
) -> None:
    """So is the remaining cause of an alarm when one cause has gone."""
    caplog.set_level(logging.INFO, "amqp10broker.alarms")
    async with watched(meter) as broker:
        meter.used = 700 * MB
        broker.resource_monitor.check()
        broker.resource_monitor.check()
        broker.resource_monitor.set_alarm("memory", on=True)
        meter.used = 500 * MB
        broker.resource_monitor.check()
        broker.resource_monitor.set_limit("vm_memory_high_watermark", "0.7", source="test")
    assert messages_of_alarms(caplog) == [
        "alarm name='memory' cause='measured' used_bytes=700000000 limit_bytes=600000000",
        "alarm name='memory' cause='by hand'",
        (
            "alarm cleared name='memory' cause='measured' used_bytes=500000000 limit_bytes=600000000 "
            "still_on_because='by hand'"
        ),
        "setting changed name='vm_memory_high_watermark' value='0.7' limit_bytes=700000000",
    ]


async def test_the_admin_door_sets_limits(meter: FakeMeter) -> None:
    """`set-limit` answers with bytes and with the present alarms."""
    async with watched(meter) as broker:
        result = {"limit_bytes": 10 * MB, "alarms": ["memory"]}
        assert await ask(broker, "set-limit", name=WATERMARK, value="10MB") == result
        refused = await asked(broker, "set-limit", name="disk_free_limit", value="-1")
        assert not refused["ok"]
        assert "must be an amount such as 50MB" in refused["error"]
        assert broker.config.vm_memory_high_watermark == "10MB"
        assert broker.config.disk_free_limit is None
