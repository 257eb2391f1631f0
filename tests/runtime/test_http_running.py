"""What is running, over HTTP: overview, nodes, connections, channels, sessions, consumers, health."""

from __future__ import annotations

import tomllib
from typing import Any
from urllib.parse import quote

import pytest
import trio

from amqp10broker.api.endpoints import RecentUsers
from amqp10broker.config import FlowSettings
from amqp10broker.emulation import UNSET
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10.performatives import Attach, Close, Open, SaslOutcome
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.queues.queue_task import QueueTask
from tests.support.certificates import Certificates, certificates
from tests.support.declaring import add_vhost, declare
from tests.support.http_user import HttpUser, add_login, http_user
from tests.support.rawframes import attach_receiver, attach_sender, begin, credit, login, open_frame
from tests.support.trioclient import Client, connect, running_broker, settle_down
from tests.support.trioclient091 import Client091, connect091

__all__ = ["certificates"]


async def client091(broker: Broker, user: str = "guest", password: str = "guest") -> Client091:
    client = connect091(broker, peer=f"127.0.0.1:4000{len(broker.connections)}")
    await client.start(
        "PLAIN", f"\0{user}\0{password}".encode(), connection_name="mine", product="tests", number=7
    )
    await client.tune()
    await client.call(0, methods.ConnectionOpen(virtual_host="/"), methods.ConnectionOpenOk)
    return client


async def open_channel(client: Client091) -> None:
    await client.call(1, methods.ChannelOpen(), methods.ChannelOpenOk)


async def client10(broker: Broker) -> Client:
    client = connect(broker, peer="127.0.0.1:50001")
    await client.call(SaslOutcome, login("PLAIN", b"\0guest\0guest"))
    await client.call(Open, open_frame(container_id="ten"), begin())
    return client


async def test_a_connection_of_0_9_1_is_shown_with_channel_and_consumer(
    broker: Broker, user: HttpUser
) -> None:
    declare(broker.catalog, "/", "q")
    client = await client091(broker)
    await open_channel(client)
    await client.call(1, methods.BasicQos(prefetch_count=3), methods.BasicQosOk)
    await client.call(
        1,
        methods.BasicConsume(queue="q", consumer_tag="c", exclusive=True, arguments={"x-priority": 5}),
        methods.BasicConsumeOk,
    )
    (shown,) = await user.get("/connections")
    expected = {
        "name": "127.0.0.1:40000",
        "node": "broker",
        "user": "guest",
        "vhost": "/",
        "protocol": "AMQP 0-9-1",
        "state": "running",
        "type": "network",
        "peer_host": "127.0.0.1",
        "peer_port": 40000,
        "channels": 1,
        "auth_mechanism": "PLAIN",
        "user_provided_name": "mine",
        "ssl": False,
    }
    assert {key: shown[key] for key in expected} == expected
    assert shown["client_properties"]["number"] == 7
    assert shown["client_properties"]["capabilities"]["consumer_cancel_notify"] is True
    assert shown["connected_at"] > 1_700_000_000_000
    assert shown["recv_oct"] > 0
    name = quote(shown["name"], safe="")
    assert await user.get(f"/connections/{name}?columns=name") == {"name": shown["name"]}
    (channel,) = await user.get("/channels")
    assert (channel["name"], channel["number"]) == ("127.0.0.1:40000 (1)", 1)
    assert (channel["consumer_count"], channel["prefetch_count"]) == (1, 3)
    assert channel["connection_details"]["peer_port"] == 40000
    assert await user.get(f"/connections/{name}/channels") == [channel]
    assert await user.get("/vhosts/%2F/channels") == [channel]
    assert [each["name"] for each in await user.get("/vhosts/%2F/connections")] == [shown["name"]]
    one = await user.get(f"/channels/{quote(channel['name'], safe='')}")
    (consumer,) = await user.get("/consumers")
    assert one["consumer_details"] == [consumer]
    assert await user.get("/consumers/%2F") == [consumer]
    assert consumer["queue"] == {"name": "q", "vhost": "/"}
    assert consumer["channel_details"]["connection_name"] == shown["name"]
    told = [
        consumer[key] for key in ("consumer_tag", "ack_required", "exclusive", "active", "prefetch_count")
    ]
    assert told == ["c", True, True, True, 3]
    assert consumer["arguments"] == {"x-priority": 5}
    assert consumer["waits"].startswith("queue-empty")
    assert "'q'" in consumer["waits_why"]
    assert (consumer["messages_unacknowledged"], consumer["messages_unsent"]) == (0, 0)
    assert channel["waits"] is None
    assert channel["reader_credit"] > 0
    heard = await user.ask("GET", f"/connections/{name}/sessions")
    assert (heard.status, heard.json["reason"]) == (400, "connection does not use AMQP 1.0")
    assert (await user.ask("GET", "/connections/nowhere")).status == 404
    assert (await user.ask("GET", "/channels/nowhere")).status == 404
    overview = await user.get("/overview")
    assert overview["object_totals"]["connections"] == 1
    assert overview["object_totals"]["channels"] == 1
    assert overview["object_totals"]["consumers"] == 1


async def test_connections_and_channels_have_rates(broker: Broker, user: HttpUser) -> None:
    client = await client091(broker)
    await open_channel(client)
    await settle_down()
    (before,) = await user.get("/connections")
    assert "message_stats" not in (await user.get("/channels"))[0]
    await client.publish("", "nowhere", b"x" * 900)
    await settle_down()
    (channel,) = await user.get("/channels?columns=message_stats.publish,message_stats.drop_unroutable")
    assert channel == {"message_stats": {"publish": 1, "drop_unroutable": 1}}
    for _ in range(20):
        await client.publish("", "nowhere", b"x")
    await trio.sleep(5)
    (after,) = await user.get("/connections")
    rate = (after["recv_oct"] - before["recv_oct"]) / 5
    assert after["recv_oct_details"]["rate"] == pytest.approx(rate, rel=0.01)
    (channel,) = await user.get("/channels?columns=message_stats")
    # All of them, since the first look, at which there was none.
    assert channel["message_stats"]["publish_details"]["rate"] == pytest.approx(21 / 5, rel=0.01)
    (bare,) = await user.get("/connections?disable_stats=true")
    assert "recv_oct" not in bare


async def test_a_connection_of_1_0_is_shown_with_credit_and_windows(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    client = await client10(broker)
    await client.send(attach_sender(0, "/queues/q"), attach_receiver(1, "/queues/q"), credit(1, 7))
    await client.take(Attach, 2)
    await settle_down()
    (shown,) = await user.get("/connections")
    assert (shown["protocol"], shown["container_id"], shown["channels"]) == ("AMQP 1-0", "ten", 1)
    (session,) = await user.get(f"/connections/{quote(shown['name'], safe='')}/sessions")
    assert session["incoming_window"] == broker.config.flow.max_incoming_window
    assert session["remote_outgoing_window"] > 0
    (incoming,), (outgoing,) = session["incoming_links"], session["outgoing_links"]
    assert incoming["max_message_size"] == broker.config.max_message_size_bytes
    assert (incoming["snd_settle_mode"], outgoing["max_message_size"]) == ("mixed", "unlimited")
    assert (incoming["target_address"], incoming["credit"]) == ("/queues/q", 170)
    assert (outgoing["source_address"], outgoing["queue_name"], outgoing["credit"]) == ("/queues/q", "q", 7)
    assert outgoing["send_settled"] is False
    assert outgoing["waits"].startswith("queue-empty")
    assert await user.get(f"/connections/{quote(shown['name'], safe='')}/channels") == []
    (consumer,) = await user.get("/consumers")
    assert (consumer["consumer_tag"], consumer["channel_details"]) == ("1", {})
    assert consumer["link_details"] == {
        "connection_name": shown["name"],
        "channel_number": session["channel_number"],
        "link_name": outgoing["link_name"],
    }
    assert consumer["waits"] == outgoing["waits"]


async def test_a_connection_is_closed_with_a_reason(broker: Broker, user: HttpUser) -> None:
    client, other = await client091(broker), await client10(broker)
    heard = await user.ask("DELETE", "/connections/127.0.0.1%3A40000", x_reason="too loud")
    assert heard.status == 204
    close = await client.expect(methods.ConnectionClose)
    assert (close.reply_code, "too loud" in close.reply_text) == (320, True)
    assert (await user.ask("DELETE", "/connections/username/guest")).status == 204
    assert "Closed via management plugin" in (await other.until(Close)).error.description
    await client.submit(0, methods.ConnectionCloseOk())
    assert (await user.ask("DELETE", "/connections/127.0.0.1%3A40000")).status == 404


async def test_users_see_and_close_their_own_connections(broker: Broker) -> None:
    add_login(broker, "ann:pw", "management", vhosts=["/"])
    add_login(broker, "mon:pw", "monitoring", vhosts=["/"])
    await client091(broker)
    await client091(broker, "ann", "pw")
    async with http_user(broker, "ann:pw") as ann:
        assert [each["user"] for each in await ann.get("/connections")] == ["ann"]
        assert [each["user"] for each in await ann.get("/connections/username/ann")] == ["ann"]
        assert (await ann.ask("DELETE", "/connections/username/guest")).status == 401
        assert (await ann.ask("DELETE", "/connections/127.0.0.1%3A40000")).status == 404
        assert (await ann.get("/overview"))["object_totals"]["connections"] == 1
        assert (await ann.ask("GET", "/nodes")).status == 401
    async with http_user(broker, "mon:pw") as mon:
        assert {each["user"] for each in await mon.get("/connections")} == {"ann", "guest"}
        assert (await mon.ask("DELETE", "/connections/127.0.0.1%3A40000")).status == 401
        assert (await mon.get("/nodes"))[0]["name"] == "broker"


async def test_the_overview_says_what_clients_look_for(broker: Broker, user: HttpUser) -> None:
    add_vhost(broker.catalog, "v")
    declare(broker.catalog, "/", "q")
    shown = await user.get("/overview")
    assert shown["rabbitmq_version"] == UNSET.version
    assert shown["product_name"] == "amqp10broker"
    assert shown["node"] == "broker"
    assert shown["object_totals"]["queues"] == 1
    totals = {"messages": 0, "messages_ready": 0, "messages_unacknowledged": 0}
    rates = {f"{name}_details": {"rate": 0.0} for name in totals}
    assert shown["queue_totals"] == totals | rates
    assert shown["message_stats"] == {}
    assert {"direct", "fanout", "topic", "headers"} <= {each["name"] for each in shown["exchange_types"]}
    assert {each["protocol"] for each in shown["listeners"]} == {"amqp"}
    less = await user.get("/overview?disable_stats=true&enable_queue_totals=true")
    assert "listeners" not in less
    assert less["queue_totals"] == totals
    assert await user.get("/extensions") == []


async def test_the_overview_counts_what_clients_did_where_the_user_sees_it(
    broker: Broker, user: HttpUser
) -> None:
    declare(broker.catalog, "/", "q")
    client = await client091(broker)
    await open_channel(client)
    for key in ("q", "nowhere"):
        await client.publish("", key, b"x")
    await client.submit(1, methods.BasicGet(queue="q", no_ack=True))
    stats = (await user.get("/overview"))["message_stats"]
    assert (stats["publish"], stats["drop_unroutable"], stats["get_no_ack"]) == (2, 1, 1)
    await client.publish("", "q", b"x")
    await trio.sleep(5)
    stats = (await user.get("/overview"))["message_stats"]
    assert stats["publish_details"]["rate"] == pytest.approx(0.2, rel=0.01)
    add_login(broker, "ann:pw", "management")
    async with http_user(broker, "ann:pw") as ann:
        assert (await ann.get("/overview"))["message_stats"] == {}


async def test_overview_and_nodes_do_not_look_into_queues(
    broker: Broker, user: HttpUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be tens of thousands of queues: the totals must cost next to nothing for each."""
    declare(broker.catalog, "/", "q")
    looks: list[object] = []
    monkeypatch.setattr(QueueTask, "figures", looks.append)
    monkeypatch.setattr(DeclaredQueue, "counted", looks.append)
    for path in ("/overview", "/nodes", "/nodes/broker?memory=true"):
        await user.get(path)
    assert looks == []


async def test_the_node_is_shown(broker: Broker, user: HttpUser) -> None:
    node = await user.get("/nodes/broker?memory=true")
    assert (node["name"], node["running"], node["being_drained"]) == ("broker", True, False)
    assert node["os_pid"].isdecimal()
    assert node["mem_used"] > 1_000_000
    assert min(node[key] for key in ("processors", "proc_used", "fd_used", "fd_total")) >= 1
    assert "rabbitmq_management" in node["enabled_plugins"]  # tools ask whether the API is there
    assert node["memory"]["total"]["rss"] > 1_000_000
    memory = await user.get("/nodes/broker/memory")
    assert {"connection_readers", "quorum_ets", "reserved_unallocated"} <= memory["memory"].keys()
    assert (await user.get("/nodes/broker/memory/relative"))["memory"]["total"] == 100
    for path in ("/nodes/other", "/nodes/other/memory", "/nodes/other/memory/relative"):
        assert (await user.ask("GET", path)).status == 404
    assert await user.get("/cluster-name") == {"name": "broker"}
    assert "{key_missing,name}" in (await user.ask("PUT", "/cluster-name", {})).json["reason"]


CHECKS = "/health/checks"


async def test_health_checks_pass(broker: Broker, user: HttpUser) -> None:
    port = broker.addresses[0][1]
    for check in (
        "alarms",
        "local-alarms",
        f"port-listener/{port}",
        "protocol-listener/amqp,amqp091,amqp10",
        "virtual-hosts",
        "node-is-quorum-critical",
        "quorum-queues-without-elected-leaders/all-vhosts",
        "quorum-queues-without-elected-leaders/all-vhosts/pattern/.*",
        "quorum-queues-without-elected-leaders/vhost/%2F",
        "quorum-queues-without-elected-leaders/vhost/%2F/pattern/a",
        "is-in-service",
        "below-node-connection-limit",
        "ready-to-serve-clients",
        "reached-target-cluster-size",
        "metadata-store/initialized",
        "metadata-store/initialized/with-data",
    ):
        heard = await user.ask("GET", f"{CHECKS}/{check}")
        assert (heard.status, heard.json["status"]) == (200, "ok"), check


async def test_health_checks_fail_and_say_why() -> None:
    async with running_broker(connection_max=1) as broker, http_user(broker) as user:
        await client091(broker)
        broker.resource_monitor.set_alarm("disk", on=True)
        expected: list[tuple[str, dict[str, Any]]] = [
            ("alarms", {"alarms": [{"node": "broker", "resource": "disk space"}]}),
            ("local-alarms", {"alarms": [{"node": "broker", "resource": "disk space"}]}),
            ("port-listener/1", {"missing": 1, "ports": [broker.addresses[0][1]]}),
            ("protocol-listener/amqp,mqtt", {"missing": ["mqtt"], "protocols": ["amqp"]}),
            ("below-node-connection-limit", {"reason": "1 connections are open, and 1 may be"}),
            ("ready-to-serve-clients", {"reason": "1 connections are open, and 1 may be"}),
        ]
        for check, told in expected:
            heard = await user.ask("GET", f"{CHECKS}/{check}")
            assert (heard.status, heard.json["status"]) == (503, "failed"), check
            assert heard.json["reason"]
            assert {key: heard.json[key] for key in told} == told
        assert (await user.ask("GET", f"{CHECKS}/port-listener/x")).status == 400


async def test_rates_are_those_of_the_last_interval_for_a_client_that_asks_seldom(
    broker: Broker, user: HttpUser
) -> None:
    """The broker samples by itself while HTTP clients ask, so a scaler reads the present state."""
    declare(broker.catalog, "/", "q")
    client = await client091(broker)
    await open_channel(client)
    await client.publish("", "q", b"first")
    await settle_down()
    assert (await user.get("/queues/%2F/q"))["message_stats"]["publish_details"]["rate"] == 0
    await trio.sleep(21)
    for _ in range(50):
        await client.publish("", "q", b"x")
    await settle_down()
    await trio.sleep(5)
    shown = await user.get("/queues/%2F/q")
    assert shown["message_stats"]["publish_details"]["rate"] == pytest.approx(10, rel=0.05)
    overview = await user.get("/overview")
    assert overview["message_stats"]["publish_details"]["rate"] == pytest.approx(10, rel=0.05)
    (channel,) = await user.get("/channels")
    assert channel["message_stats"]["publish_details"]["rate"] == pytest.approx(10, rel=0.05)
    await trio.sleep(10)
    assert (await user.get("/queues/%2F/q"))["message_stats"]["publish_details"]["rate"] == 0


async def test_the_broker_looks_no_more_when_nobody_has_asked_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[float] = []

    async def look(self: RecentUsers) -> None:
        looked.append(trio.current_time())

    monkeypatch.setattr(RecentUsers, "look", look)
    async with running_broker(collect_statistics_interval_ms=1_000) as broker:

        async def ask() -> None:
            async with http_user(broker) as user:
                await user.get("/queues")

        await trio.sleep(60)
        assert not looked
        await ask()
        await trio.sleep(60)
        assert 58 <= len(looked) <= 61
        await trio.sleep(2_000)
        count = len(looked)
        assert count <= 602
        await trio.sleep(60)
        assert len(looked) == count
        await ask()
        await trio.sleep(10)
        assert len(looked) > count


async def test_certificates_that_end_soon_fail_a_check(certificates: Certificates) -> None:
    settings = {"tls_certificate": certificates.server, "tls_key": certificates.server_key}
    async with running_broker(**settings) as broker, http_user(broker) as user:
        check = "/health/checks/certificate-expiration"
        assert await user.get(f"{check}/1/days") == {"status": "ok"}
        heard = await user.ask("GET", f"{check}/2000/years")
        assert (heard.status, heard.json["status"]) == (503, "failed")
        (told,) = heard.json["expired"]
        assert (told["node"], told["setting"]) == ("broker", "tls_certificate")
        for wrong in ("x/days", "-1/days", "1/fortnights", "1234567/days"):
            assert (await user.ask("GET", f"{check}/{wrong}")).status == 400


async def test_the_settings_are_told_without_secrets() -> None:
    async with running_broker(tls_key_password="s3cret", flow=FlowSettings(77)) as broker:
        async with http_user(broker) as user:
            heard = await user.ask("GET", "/config/effective")
        assert heard.headers["content-type"] == "text/plain"
        told = tomllib.loads(heard.body.decode())
        assert told["max_link_credit"] == 77
        assert told["default_vhost"] == "/"
        assert b"s3cret" not in heard.body
        assert b"# tls_key_password is not shown\n" in heard.body


async def test_an_upgrade_check_is_for_administrators(broker: Broker, verify_passwords_at_once: None) -> None:
    """The result is that of `amqp10broker upgrade-check`, worst first."""
    add_login(broker, "mon:pw", "monitoring")
    async with http_user(broker) as guest, http_user(broker, "mon:pw") as mon:
        assert await guest.put("/queues/%2F/q", {}) == 201
        said = await guest.get("/upgrade-check/4.3")
        assert [(each["finding"], each["who"]) for each in said["findings"]] == [
            ("transient_nonexcl_queues", "q")
        ]
        assert (await guest.ask("GET", "/upgrade-check/5.0")).status == 400
        assert (await mon.ask("GET", "/upgrade-check/4.3")).status == 401


async def test_the_checklist_of_production_is_for_administrators(
    broker: Broker, verify_passwords_at_once: None
) -> None:
    """The result is that of `amqp10broker doctor`, worst first."""
    add_login(broker, "mon:pw", "monitoring")
    async with http_user(broker) as guest, http_user(broker, "mon:pw") as mon:
        said = await guest.get("/doctor")
        states = [each["state"] for each in said["checks"]]
        assert states == sorted(states, key=["bad", "warn", "unknown", "ok"].index)
        assert all(each["evidence"] for each in said["checks"])
        assert (await mon.ask("GET", "/doctor")).status == 401
