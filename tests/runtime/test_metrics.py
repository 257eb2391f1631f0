"""Metrics of a running broker: what they count, what the stock boards ask for, and how they are asked."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from amqp10broker.metadata.users import Permission
from amqp10broker.observe import metrics as table
from amqp10broker.observe.metrics import Form, wanted
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10.performatives import Attach
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.http import http_api
from amqp10broker.runtime.observe import metrics_source
from tests.support import panels
from tests.support import rawframes as raw
from tests.support.declaring import add_vhost, declare, declare_exchange, delete_vhost, remove, set_permission
from tests.support.http_user import add_login, http_user
from tests.support.trioclient import alongside, connect, eventually, running_broker, settle_down
from tests.support.trioclient091 import connect091, message

DOCS = Path(__file__).parents[2] / "docs"
OM = "application/openmetrics-text;version=1.0.0"


async def text_of(broker: Broker, form: Form = Form.AGGREGATED, *families: str) -> str:
    return (await http_api.text_of(broker, wanted(form, families=families))).decode()


async def scraped(broker: Broker, form: Form = Form.AGGREGATED, *families: str) -> list[Metric]:
    return list(read_text(await text_of(broker, form, *families)))


def value(families: list[Metric], name: str, **labels: str) -> float:
    """Return the one sample of this name and these labels."""
    (found,) = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return found


@asynccontextmanager
async def busy_broker(**settings: str) -> AsyncIterator[Broker]:
    """Clients of both protocols have published to and got from queues of all kinds, and stay connected."""
    async with running_broker(**settings) as broker:
        for kind in ("classic", "quorum", "stream"):
            declare(broker.catalog, "/", kind, durable=True, arguments={"x-queue-type": kind})
        old = await connect091(broker).open()
        await old.call(1, methods.QueueDeclare("classic", passive=True), methods.QueueDeclareOk)
        await old.submit(1, message(1, "classic", b"x" * 150), message(1, "quorum", b"y"))
        await old.submit(1, methods.BasicGet("quorum"))
        await old.idle()
        await old.call(1, methods.BasicConsume("classic", no_ack=True), methods.BasicConsumeOk)
        client = await connect(broker).open()
        await client.send(raw.attach_sender(0, "/queues/quorum"), raw.attach_receiver(1, "/queues/quorum"))
        await client.take(Attach, 2)
        await client.send(raw.flow(handle=1, link_credit=1), raw.transfer(0, 0, b"z"))
        await client.submit(raw.transfer(0, 1, b"z", settled=True))
        yield broker


async def test_what_clients_did_is_counted_by_protocol_and_kind_of_queue() -> None:
    async with busy_broker() as broker:
        found = await scraped(broker)
        got = "rabbitmq_global_messages"
        assert value(found, f"{got}_received_total", protocol="amqp091") == 2
        assert value(found, f"{got}_received_confirm_total", protocol="amqp091") == 0
        assert value(found, f"{got}_received_total", protocol="amqp10") == 2
        assert value(found, f"{got}_received_confirm_total", protocol="amqp10") == 1
        assert value(found, f"{got}_confirmed_total", protocol="amqp10") == 1
        assert value(found, f"{got}_routed_total", protocol="amqp10") == 2
        classic, quorum = (
            {"protocol": "amqp091", "queue_type": f"rabbit_{kind}_queue"} for kind in ("classic", "quorum")
        )
        assert value(found, f"{got}_delivered_consume_auto_ack_total", **classic) == 1
        assert value(found, f"{got}_delivered_get_manual_ack_total", **quorum) == 1
        assert value(found, f"{got}_delivered_total", **quorum) == 1
        quorum["protocol"] = "amqp10"
        assert value(found, f"{got}_delivered_consume_manual_ack_total", **quorum) == 1
        sizes = "rabbitmq_message_size_bytes"
        assert value(found, f"{sizes}_sum", protocol="amqp091") == 151
        assert value(found, f"{sizes}_bucket", protocol="amqp091", le="100.0") == 1
        assert value(found, f"{sizes}_bucket", protocol="amqp091", le="1000.0") == 2
        assert value(found, "rabbitmq_queue_messages_ready") == 1
        assert value(found, "rabbitmq_queue_messages_unacked") == 2
        assert value(found, "rabbitmq_queues") == 3
        assert value(found, "rabbitmq_queues_created_total") == 3
        assert value(found, "rabbitmq_queues_declared_total") == 1
        assert value(found, "rabbitmq_connections") == 2
        assert value(found, "amqp10broker_connections", transport="tcp") == 2
        assert value(found, "amqp10broker_connections", transport="websocket") == 0
        assert value(found, "rabbitmq_channels") == 1
        assert value(found, "rabbitmq_global_consumers", protocol="amqp10") == 1


async def test_a_counter_does_not_go_back_when_a_client_goes() -> None:
    async with busy_broker() as broker:
        before = await scraped(broker)
        for connection in list(broker.connections.values()):
            connection.close("over", node_stops=False)
        await eventually(lambda: not broker.connections)
        after = await scraped(broker)
    for family in before:
        if family.type in ("counter", "histogram"):
            for sample in family.samples:
                assert value(after, sample.name, **sample.labels) >= sample.value, sample
    assert value(after, "rabbitmq_connections_closed_total") == 2
    assert value(after, "rabbitmq_channels_closed_total") == 1


async def test_credit_windows_and_waits_are_there() -> None:
    """The wait before the first grant is over; the one after it continues."""
    async with busy_broker() as broker:
        found = await scraped(broker)
        spell = "amqp10broker_link_credit_zero_seconds"
        assert value(found, f"{spell}_count", role="receiver") == 1
        assert value(found, f"{spell}_count", role="sender") == 0
        assert value(found, "amqp10broker_session_remote_window_zero_seconds_count") == 0
        assert value(found, "amqp10broker_links_waiting", reason="no-credit-used-up") == 1
        assert value(found, "amqp10broker_link_credit", role="receiver") == 0
        assert value(found, "amqp10broker_link_credit", role="sender") > 0
        assert value(found, "amqp10broker_queue_credit_grants_total", protocol="amqp10") >= 1
        links = await scraped(broker, Form.DETAILED, "link_metrics")
        (number,) = {each.id for each in broker.view().connections if each.sessions}
        labels = {"connection": str(number), "session": "0", "role": "receiver", "queue": "quorum"}
        (credit,) = [family for family in links if family.name == "amqp10broker_detailed_link_credit"]
        (sample,) = [each for each in credit.samples if each.labels["role"] == "receiver"]
        assert {name: sample.labels[name] for name in labels} == labels


async def test_every_panel_of_the_overview_finds_series() -> None:
    async with busy_broker(disk_free_limit="1MB") as broker:
        found = await scraped(broker)
        identity = [family for family in found if family.name == "rabbitmq_identity_info"]
        assert [sample.value for sample in identity[0].samples] == [1.0]
        for form in Form.AGGREGATED, Form.PER_OBJECT:
            series = panels.series_of(await text_of(broker, form))
            for panel, query in panels.OVERVIEW.items():
                assert panels.unfound(query, series) == [], panel


async def test_the_board_of_quorum_queues_finds_series_per_object(tmp_path: Path) -> None:
    """Only the latency of commits is missing. A single node has no aggregated series, as the page says."""
    async with running_broker(data_dir=str(tmp_path)) as broker:
        declare(broker.catalog, "/", "q", durable=True, arguments={"x-queue-type": "quorum"})
        await settle_down()
        series = panels.series_of(await text_of(broker, Form.PER_OBJECT))
        aggregated = panels.series_of(await text_of(broker))
    for panel, query in panels.QUORUM.items():
        assert panels.unfound(query, series) == [], panel
        assert panels.unfound(query, aggregated) != [], panel
    assert panels.unfound(panels.LATENCY, series) == [panels.LATENCY]
    assert "latency of Raft's commits" in (DOCS / "metrics.md").read_text()


async def test_the_board_of_streams_asks_for_a_protocol_that_is_not_spoken_here() -> None:
    """None of its queries finds a series, as the page says; streams are among the kinds of queues."""
    async with busy_broker() as broker:
        series = panels.series_of(await text_of(broker, Form.PER_OBJECT))
    assert [query for query in panels.STREAM if panels.unfound(query, series)] == list(panels.STREAM)
    streams = "rabbitmq_global_messages_delivered_total{queue_type='rabbit_stream_queue'}"
    assert panels.unfound(streams, series) == []
    assert "Its board Stream finds nothing here" in (DOCS / "metrics.md").read_text()


async def test_what_queues_give_up_is_counted_by_kind_reason_and_strategy() -> None:
    """The counts continue when the queue or its virtual host is deleted."""
    name = "rabbitmq_global_messages_dead_lettered"
    classic = {"queue_type": "rabbit_classic_queue", "dead_letter_strategy": "disabled"}
    quorum = {"queue_type": "rabbit_quorum_queue", "dead_letter_strategy": "at_most_once"}
    safe = {**quorum, "dead_letter_strategy": "at_least_once"}
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 1}
    strict = {**dead, "x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once"}
    async with running_broker() as broker:
        add_vhost(broker.catalog, "v")
        for vhost in ("/", "v"):
            declare(broker.catalog, vhost, "short", arguments={"x-max-length": 1})
        declare(broker.catalog, "/", "dead")
        kind = {"x-queue-type": "quorum"}
        declare(broker.catalog, "/", "quick", durable=True, arguments={**dead, **kind})
        declare(broker.catalog, "/", "safe", durable=True, arguments={**strict, **kind})
        client = await connect091(broker).open()
        await client.send(1, *(message(1, queue, b"x") for queue in ("short", "quick") for _ in range(3)))
        set_permission(broker.catalog, "guest", "v", Permission())
        other = await connect091(broker).open(vhost="v")
        await other.send(1, message(1, "short", b"x"), message(1, "short", b"x"))
        await client.submit(1, message(1, "safe", b"x", expiration="0"))
        for ending in (
            lambda: None,
            lambda: remove(broker.catalog, "/", "short"),
            lambda: delete_vhost(broker.catalog, "v"),
        ):
            ending()
            await settle_down()
            found = await scraped(broker)
            assert value(found, f"{name}_maxlen_total", **classic) == 3
            assert value(found, f"{name}_maxlen_total", **quorum) == 2
            assert value(found, f"{name}_expired_total", **safe) == 1
            assert value(found, f"{name}_confirmed_total", **safe) == 1


async def test_messages_of_queues_are_there_in_bytes_where_they_are_known(tmp_path: Path) -> None:
    """Each queue has its own count; an idle consumer can receive a delivery at once."""
    async with running_broker(data_dir=str(tmp_path)) as broker:
        for name, kind in (("c", "classic"), ("q", "quorum"), ("s", "stream")):
            declare(broker.catalog, "/", name, durable=True, arguments={"x-queue-type": kind})
        declare(broker.catalog, "/", "t", durable=False)
        client = await connect091(broker).open()
        for name in "cqst":
            await client.send(1, message(1, name, b"x" * 100), message(1, name, b"x" * 50))
        q = broker.catalog.lookup_vhost("/").lookup("q")
        await eventually(lambda: q.handle.ready == 2)
        await client.send(1, methods.BasicGet("q"))
        await client.idle()
        found = await scraped(broker, Form.PER_OBJECT)
        of = {name: {"vhost": "/", "queue": name} for name in "cqt"}
        for name in "cqt":
            assert value(found, "rabbitmq_queue_messages_bytes", **of[name]) == 150
            assert value(found, "rabbitmq_queue_consumer_capacity", **of[name]) == 0
        assert value(found, "rabbitmq_queue_messages_ready_bytes", **of["q"]) == 50
        assert value(found, "rabbitmq_queue_messages_unacked_bytes", **of["q"]) == 100
        persistent = {
            sample.labels["queue"]: sample.value
            for family in found
            for sample in family.samples
            if sample.name == "rabbitmq_queue_messages_persistent"
        }
        assert persistent == {"q": 2, "t": 0}
        await client.call(1, methods.BasicConsume("t", no_ack=True), methods.BasicConsumeOk)
        await settle_down()
        found = await scraped(broker, Form.DETAILED, "queue_metrics")
        assert value(found, "rabbitmq_detailed_queue_consumer_capacity", **of["t"]) == 1


async def test_of_memory_the_whole_is_there() -> None:
    async with (
        running_broker() as broker,
        http_user(broker, "", listener=broker.prometheus, prefix="/metrics") as user,
    ):
        found = panels.series_of((await user.ask("GET", "/memory-breakdown")).body.decode())
    assert {each.name for each in found} == {
        *("rabbitmq_identity_info", "rabbitmq_build_info", "rabbitmq_memory_other_system_bytes")
    }
    (identity,) = [each for each in found if each.name == "rabbitmq_identity_info"]
    assert identity.labels["rabbitmq_endpoint"] == "memory-breakdown"


async def test_every_panel_of_our_own_board_finds_series() -> None:
    written = json.loads((DOCS / "grafana" / "flow.json").read_text())
    queries = [target["expr"] for panel in written["panels"] for target in panel.get("targets", ())]
    assert len(queries) >= 12
    async with busy_broker() as broker:
        cluster = broker.container_id
        series = panels.series_of(await text_of(broker))
    for query in queries:
        assert panels.unfound(query.replace("$cluster", cluster), series) == [], query


def test_a_query_that_asks_for_another_name_or_label_is_noticed() -> None:
    series = [panels.Series("a_total", {"protocol": "amqp10"})]
    assert panels.unfound("sum(rate(a_total{protocol='amqp10'}[60s]))", series) == []
    assert panels.unfound("rate(a_total{protocol='mqtt'}[60s]) or b", series) == [
        "a_total{protocol='mqtt'}",
        "b",
    ]
    assert panels.unfound("a_total{protocol=~'amqp.*',x!='y'}", series) == []


async def test_families_and_virtual_hosts_and_queues_are_chosen(broker: Broker) -> None:
    for name in ("one", "two"):
        declare(broker.catalog, "/", name)
    listener = broker.prometheus
    async with http_user(broker, "", listener=listener, prefix="/metrics") as user:
        path = "/detailed?family=queue_coarse_metrics&family=queue_consumer_count&vhost=%2F&queue=%5Eo"
        found = panels.series_of((await user.ask("GET", path)).body.decode())
        named = [each for each in found if "queue" in each.labels]
        assert {each.labels["queue"] for each in named} == {"one"}
        assert {each.name for each in named} == {
            *(f"rabbitmq_detailed_queue_messages{end}" for end in ("", "_ready", "_unacked")),
            *("rabbitmq_detailed_queue_consumers", "rabbitmq_detailed_queue_info"),
        }
        nothing = panels.series_of((await user.ask("GET", "/detailed")).body.decode())
        assert {each.name for each in nothing} == {"rabbitmq_identity_info", "rabbitmq_build_info"}
        heard = await user.ask("GET", "/detailed?family=queue_coarse_metrics&queue=(")
        assert heard.status == 400
        assert (await user.ask("GET", "/nowhere")).status == 404
        assert (await user.ask("GET", "", accept="image/png")).status == 406


async def test_the_format_is_the_one_that_the_client_takes() -> None:
    async with (
        busy_broker() as broker,
        http_user(broker, "", listener=broker.prometheus, prefix="/metrics") as user,
    ):
        for path in ("", "/per-object", "/detailed?family=link_metrics&family=ra_metrics"):
            plain = await user.ask("GET", path)
            assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            heard = await user.ask("GET", path, accept=f"{OM},text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
            assert heard.headers["content-type"].startswith(OM.replace(";", "; "))
            ours = {each.name for each in panels.series_of(plain.body.decode())}
            whole = heard.body.decode()
            assert {each.name for each in panels.series_of(whole)} == ours
            assert {sample.name for family in read_openmetrics(whole) for sample in family.samples} == ours


@pytest.mark.real_clock
async def test_metrics_have_a_port_of_their_own_unless_they_are_turned_off() -> None:
    async with running_broker(prometheus_port=0) as broker:
        async with await trio.open_tcp_stream(*broker.prometheus.addresses[0]) as stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        assert broker.http.addresses == []
    for settings in ({"prometheus": False}, {"http": False}):
        async with running_broker(prometheus_port=0, **settings) as broker:
            assert broker.prometheus.addresses == []


async def test_what_a_client_decides_late_is_counted_by_kind_of_queue(broker: Broker) -> None:
    """A cancelled consumer's delivery is acknowledged later: no count is lost or doubled."""
    declare(broker.catalog, "/", "q")
    client = await connect091(broker).open()
    await client.call(1, methods.BasicConsume("q", consumer_tag="c"), methods.BasicConsumeOk)
    await client.submit(1, message(1, "q", b"x"), message(1, "q", b"x"))
    await client.send(1, methods.BasicCancel("c"))
    await client.submit(1, methods.BasicAck(1))
    kind = {"protocol": "amqp091", "queue_type": "rabbit_classic_queue"}
    for gone in (False, True):
        if gone:
            await client.lose()
        found = await scraped(broker)
        assert value(found, "rabbitmq_global_messages_acknowledged_total", **kind) == 1
        assert value(found, "rabbitmq_global_messages_delivered_total", **kind) == 2


async def test_below_the_port_of_the_api_metrics_need_a_login(broker: Broker) -> None:
    add_login(broker, "ann:pw", "management")
    add_login(broker, "bea:pw", "monitoring")
    for login, status in (("", 401), ("ann:pw", 401), ("bea:pw", 200)):
        async with http_user(broker, login, prefix="") as user:
            assert (await user.ask("GET", "/metrics")).status == status


async def test_a_scrape_of_many_queues_leaves_others_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes one millisecond, so a turn has a few steps."""
    now = iter(range(10**9))
    monkeypatch.setattr(metrics_source, "perf_counter", lambda: next(now) / 1000)
    async with running_broker() as broker:
        for number in range(500):
            declare(broker.catalog, "/", f"q{number}")
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with alongside(other):
            found = await scraped(broker, Form.PER_OBJECT)
        assert turns > 500 / 5
    names = [
        sample.labels["queue"]
        for family in found
        for sample in family.samples
        if sample.name == "rabbitmq_queue_messages_ready"
    ]
    assert len(set(names)) == len(names) == 500


async def test_clients_cannot_make_more_series_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ROWS_MAX", 3)
    async with running_broker() as broker:
        declare(broker.catalog, "/", "q")
        client = await connect(broker).open()
        await client.send(*(raw.attach_sender(number, "/queues/q") for number in range(5)))
        await client.take(Attach, 5)
        found = await scraped(broker, Form.PER_OBJECT)
        credits = [f for f in found if f.name == "amqp10broker_link_credit"]
        assert len(credits[0].samples) == 3
        assert value(found, "amqp10broker_series_left_out", family="link_metrics") == 2


async def test_exchanges_and_virtual_hosts_are_there(broker: Broker) -> None:
    declare_exchange(broker.catalog, "/", "e", "topic")
    found = await scraped(broker, Form.DETAILED, "exchange_names", "vhost_status", "exchange_metrics")
    assert value(found, "rabbitmq_cluster_vhost_status", vhost="/") == 1
    assert value(found, "rabbitmq_cluster_exchange_name", vhost="/", exchange="e", type="topic") == 1
    published = "rabbitmq_detailed_exchange_messages_published_total"
    assert value(found, published, vhost="/", exchange="e") == 0


GENERATOR = Path(__file__).parents[2] / ".ci" / "generate_metrics.py"


async def test_the_generated_page_has_a_row_for_each_metric_of_a_scrape() -> None:
    page = runpy.run_path(str(GENERATOR))["render"]()
    async with busy_broker() as broker:
        found = [*await scraped(broker), *await scraped(broker, Form.PER_OBJECT)]
    names = {family.name for family in found}
    assert len(names) > 100
    # The parser removes the suffix of counters.
    assert [name for name in names if not re.search(rf"^\| `{name}(?:_total)?` \|", page, re.M)] == []
