"""Who may ask the HTTP API, and what goes around every endpoint, against a running broker."""

from __future__ import annotations

from base64 import b64encode

import pytest
import trio

from amqp10broker.api.calls import EndpointCall
from amqp10broker.api.endpoints import ROUTES
from amqp10broker.api.messages import HttpResponse
from amqp10broker.auth.login import Peer
from amqp10broker.config import Config
from amqp10broker.emulation import UNSET
from amqp10broker.errors import ConfigError
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.http.http_api import FORM_BYTES_MAX
from amqp10broker.runtime.http.http_connection import HttpLimits
from tests.support.http_user import HttpUser, add_login, http_user
from tests.support.trioclient import connect, running_broker
from tests.support.trioclient091 import connect091


async def test_a_user_is_told_who_it_is(broker: Broker, user: HttpUser) -> None:
    assert await user.get("/whoami") == {"name": "guest", "tags": ["administrator"], "is_internal_user": True}
    assert await user.get("/version") == UNSET.version


async def test_one_connection_serves_many_requests_each_with_its_own_login(
    broker: Broker, user: HttpUser
) -> None:
    for _ in range(3):
        assert (await user.ask("GET", "/whoami")).status == 200
    assert (await user.ask("GET", "/nowhere")).json == {"error": "Object Not Found", "reason": "Not Found"}
    assert (await user.ask("DELETE", "/whoami")).status == 405


async def test_a_wrong_password_waits_and_is_told_no_more_than_that(broker: Broker) -> None:
    for login in ("guest:wrong", "nobody:guest"):
        async with http_user(broker, login) as user:
            began = trio.current_time()
            heard = await user.ask("GET", "/whoami")
            assert trio.current_time() - began >= broker.config.auth_failure_delay_ms / 1000
            assert heard.status == 401
            assert heard.json == {"error": "not_authorized", "reason": "Not_Authorized"}


async def test_without_a_login_a_browser_is_told_to_ask_for_one() -> None:
    async with running_broker() as broker, http_user(broker, "") as user:
        heard = await user.ask("GET", "/whoami")
    assert (heard.status, heard.body) == (401, b"")
    assert heard.headers["www-authenticate"].startswith("Basic")


async def test_guest_may_come_from_this_machine_only() -> None:
    async with (
        running_broker() as broker,
        http_user(broker, origin=Peer(loopback=False, address="203.0.113.7")) as user,
    ):
        assert (await user.ask("GET", "/whoami")).status == 401


async def test_a_user_without_a_tag_may_ask_nothing() -> None:
    async with running_broker() as broker:
        add_login(broker, "ann:pw")
        async with http_user(broker, "ann:pw") as user:
            heard = await user.ask("GET", "/whoami")
    assert (heard.status, heard.json["reason"]) == (401, "Not management user")


async def test_a_path_prefix_is_part_of_every_path() -> None:
    async with running_broker(http_path_prefix="/a/b") as broker, http_user(broker) as user:
        assert (await user.ask("GET", "/whoami")).status == 404


@pytest.mark.real_clock
async def test_a_port_that_is_taken_is_told_unless_http_is_optional() -> None:
    config = Config(host="127.0.0.1", port=0, http_port=0, admin_socket="")
    async with Broker(config) as first:
        port = first.http.addresses[0][1]
        with pytest.raises(ConfigError, match=f"http_port {port} on 127.0.0.1 cannot be used"):
            async with Broker(Config(host="127.0.0.1", port=0, http_port=port, admin_socket="")):
                pass
        taken = Config(host="127.0.0.1", port=0, http_port=port, http_optional=True, admin_socket="")
        async with Broker(taken) as second:
            assert not second.http.addresses


@pytest.mark.real_clock
async def test_without_a_certificate_there_is_no_https() -> None:
    with pytest.raises(ConfigError, match="http_tls is on without a certificate"):
        async with Broker(Config(port=0, http_port=0, http_tls=True, admin_socket="")):
            pass


@pytest.mark.real_clock
async def test_no_more_connections_are_served_than_may_be() -> None:
    config = Config(port=0, http_port=0, http_connection_max=1, admin_socket="")
    async with Broker(config) as broker:
        address = broker.http.addresses[0]
        async with await trio.open_tcp_stream(*address) as first:
            await first.send_all(b"GET /api/version HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await first.receive_some()).startswith(b"HTTP/1.1 401")
            async with await trio.open_tcp_stream(*address) as second:
                assert await second.receive_some() == b""


def test_every_route_has_an_endpoint_of_the_same_shape() -> None:
    assert ROUTES
    for route in ROUTES:
        assert route.pattern.startswith("/api/")
        for endpoint in route.endpoints.values():
            run = getattr(endpoint.run, "func", endpoint.run)
            assert {name: run.__annotations__[name] for name in ("call", "return")} == {
                "call": EndpointCall.__name__,
                "return": HttpResponse.__name__,
            }


async def test_a_form_logs_in() -> None:
    async with running_broker(auth_failure_delay_ms=0) as broker, http_user(broker, "") as user:
        heard = await user.ask("POST", "/login", b"username=guest&password=guest")
        assert heard.status == 200
        assert heard.json["user"] == {"name": "guest", "tags": ["administrator"], "is_internal_user": True}
        assert heard.json["token"] == {"type": "basic", "value": b64encode(b"guest:guest").decode()}
        for wrong in (b"username=guest&password=x", b"username=guest", b"", b"\xff=1", b"&" * 50 + b"a=1"):
            heard = await user.ask("POST", "/login", wrong)
            assert (heard.status, heard.json["error"]) == (401, "not_authorized"), wrong


@pytest.mark.parametrize(
    ("login", "method", "path", "status"),
    [
        ("", "PUT", "/queues/%2F/q", 401),
        ("guest:wrong", "PUT", "/queues/%2F/q", 401),
        ("reader:reader", "PUT", "/users/x", 401),
        ("guest:guest", "PUT", "/nowhere", 404),
        ("guest:guest", "POST", "/whoami", 405),
        ("guest:guest", "PUT", "/queues/%2F/q", 400),
    ],
)
async def test_the_head_decides_before_a_body_is_read(
    login: str, method: str, path: str, status: int
) -> None:
    """The broker does not wait for an announced body. The last case announces too much."""
    announced = 30_000_000 if status == 400 else 10_000_000
    async with running_broker() as broker:
        add_login(broker, "reader:reader", "management")
        async with http_user(broker, login) as user:
            began = trio.current_time()
            heard = await user.ask(method, path, announced=announced)
            assert trio.current_time() - began < HttpLimits().body_s
    assert heard.status == status
    assert heard.headers["connection"] == "close"


async def test_a_form_to_log_in_by_is_small() -> None:
    """The broker reads it before a login."""
    form = b"username=guest&password=guest&x=" + b"y" * FORM_BYTES_MAX
    async with running_broker() as broker, http_user(broker, "") as user:
        assert (await user.ask("POST", "/login", form)).status == 400
        assert (await user.ask("POST", "/login", form[:1000])).status == 200


async def test_a_page_of_another_origin_cannot_use_the_login_that_a_browser_remembers() -> None:
    """A refused request has no effect; answers are not shown inside other pages."""
    body = b'{"properties":{},"routing_key":"q","payload":"x","payload_encoding":"string"}'
    publish = "/exchanges/%2F/amq.default/publish"
    async with running_broker() as broker, http_user(broker) as user:
        assert await user.put("/queues/%2F/q") == 201
        for headers, status in (
            ({"content_type": "text/plain"}, 415),
            ({"origin": "https://page.example"}, 403),
            ({"origin": "null", "content_type": "application/json"}, 403),
            ({"origin": "http://broker", "content_type": "application/json"}, 200),
        ):
            heard = await user.ask("POST", publish, body, **headers)
            assert heard.status == status
            assert heard.headers["x-content-type-options"] == "nosniff"
            assert heard.headers["x-frame-options"] == "DENY"
        assert (await user.get("/queues/%2F/q"))["messages"] == 1


async def test_attempts_to_log_in_are_counted() -> None:
    async with running_broker(auth_failure_delay_ms=0) as broker, http_user(broker) as user:
        async with http_user(broker, "guest:wrong") as other:
            assert (await other.ask("GET", "/whoami")).status == 401
        await connect091(broker).open()
        await connect(broker).open()
        rows = {row.pop("protocol"): row for row in await user.get("/auth/attempts/broker")}
        tried = ("auth_attempts", "auth_attempts_succeeded", "auth_attempts_failed")
        assert {protocol: tuple(row[name] for name in tried) for protocol, row in rows.items()} == {
            "http": (2, 1, 1),
            "amqp091": (1, 1, 0),
            "amqp10": (1, 1, 0),
        }
        assert await user.get("/auth/attempts/broker/source") == []
        assert (await user.ask("GET", "/auth/attempts/nowhere")).status == 404
        assert await user.delete("/auth/attempts/broker") == 204
        (row,) = await user.get("/auth/attempts/broker")
        assert row["auth_attempts"] == 1
