"""Paths of the HTTP API that are followed, against a running broker: what comes when, and how it ends."""

from __future__ import annotations

import base64

import pytest
import trio
from trio.testing import memory_stream_pair

from amqp10broker.auth.login import Peer
from amqp10broker.config import Config
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.http import http_api, http_connection
from tests.support.declaring import declare, delete_user, set_tags
from tests.support.http_user import PEER, HttpUser, add_login, http_user
from tests.support.trioclient import running_broker, settle_down

LIVE = "/live?interval=1000"


def lives(broker: Broker) -> http_api.Lives:
    lives: http_api.Lives = broker.http._answer.__self__._lives
    return lives


async def over(broker: Broker) -> None:
    """Wait until no stream is open, and no look is running."""
    await settle_down()
    assert not lives(broker)._open
    assert not lives(broker)._shared


async def test_a_path_is_told_whole_and_then_what_changes(broker: Broker) -> None:
    async with http_user(broker) as user:
        for name in "abc":
            declare(broker.catalog, "/", name)
        events = await user.follow(f"{LIVE}&path=/queues?disable_stats=true%26columns=name,vhost")
        assert (await events.next())[0] == "whole"
        assert [row["name"] for row in events.values[0]] == ["a", "b", "c"]
        began = trio.current_time()
        declare(broker.catalog, "/", "aa")
        name, data = await events.next()
        assert trio.current_time() - began <= 1
        assert (name, data["change"]["order"]) == ("delta", [0, [{"name": "aa", "vhost": "/"}], 1, 2])
        assert [row["name"] for row in events.values[0]] == ["a", "aa", "b", "c"]
    await over(broker)


async def test_silence_is_told_by_comments(broker: Broker, user: HttpUser) -> None:
    events = await user.follow(f"{LIVE}&path=/whoami")
    await events.next()
    began = trio.current_time()
    with trio.move_on_after(http_api.HEARTBEAT_S * 3.5):
        await events.next()
    assert (events.comments, trio.current_time() - began) == (3, http_api.HEARTBEAT_S * 3.5)


async def test_a_path_that_takes_long_holds_up_no_other(
    broker: Broker, user: HttpUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await user.get("/whoami")
    look = lives(broker)._look

    async def slow(request, grants):  # type: ignore[no-untyped-def]
        if request.segments == ("version",):
            await trio.sleep_forever()
        return await look(request, grants)

    monkeypatch.setattr(lives(broker), "_look", slow)
    events = await user.follow(f"{LIVE}&path=/version&path=/whoami")
    assert (await events.next())[1]["id"] == 1


async def test_rights_are_those_of_each_path_at_each_look(broker: Broker) -> None:
    """Rights are lost and regained, and the user is deleted."""
    add_login(broker, "ann:pw", "monitoring", vhosts=["/"])
    async with http_user(broker, "ann:pw") as user:
        events = await user.follow(f"{LIVE}&path=/nodes?columns=name&path=/users&path=/queues/%252F")
        heard = sorted([await events.next() for _ in range(3)], key=lambda each: each[1]["id"])
        assert [name for name, _ in heard] == ["whole", "refused", "whole"]
        assert (heard[1][1]["status"], heard[1][1]["reason"]) == (401, "Not administrator user")
        set_tags(broker.catalog, "ann", ["management"])
        name, data = await events.next()
        assert (name, data["id"], data["reason"]) == ("refused", 0, "Not monitor user")
        set_tags(broker.catalog, "ann", ["administrator"])
        again = sorted([(await events.next()) for _ in range(2)], key=lambda each: each[1]["id"])
        assert [(name, data["id"]) for name, data in again] == [("whole", 0), ("whole", 1)]
        delete_user(broker.catalog, "ann")
        heard = [await events.next()]
        while heard[-1][0] != "end":
            heard.append(await events.next())
        assert all(data["status"] == 401 for name, data in heard[:-1])
    await over(broker)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nowhere", 404),
        ("/exchanges/%252F/amq.direct/publish", 405),
        ("/live?path=/whoami", 400),
        ("/metrics", 404),
        ("/queues?page=9", 400),
    ],
)
async def test_what_cannot_be_had_is_told_and_the_stream_goes_on(
    broker: Broker, user: HttpUser, path: str, status: int
) -> None:
    events = await user.follow(f"{LIVE}&path={path}&path=/whoami")
    heard = dict([(await events.next()), (await events.next())])
    assert (heard["refused"]["id"], heard["refused"]["status"]) == (0, status)
    assert heard["whole"]["id"] == 1


async def test_equal_users_have_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another interval or another user has its own look."""
    looks: list[tuple[str, tuple[str, ...]]] = []
    run = http_api.Shared.run

    async def counted(self: http_api.Shared) -> None:
        looks.append((self._grants.user, self._request.segments))
        await run(self)

    monkeypatch.setattr(http_api.Shared, "run", counted)
    async with running_broker() as broker:
        add_login(broker, "ann:pw", "management")
        path = f"{LIVE}&path=/whoami"
        async with http_user(broker) as one, http_user(broker) as two, http_user(broker, "ann:pw") as ann:
            for user, name in ((one, "guest"), (two, "guest"), (ann, "ann")):
                events = await user.follow(path)
                assert (await events.next())[1]["value"]["name"] == name
            assert looks == [("guest", ("whoami",)), ("ann", ("whoami",))]
        await over(broker)


async def test_a_client_that_reads_slowly_is_told_the_present_at_last_and_then_let_go(broker: Broker) -> None:
    """Meanwhile only the present state is kept for the client, without a history."""
    ours, theirs = memory_stream_pair()
    gate = trio.Event()
    held = 0

    async def hold() -> None:
        nonlocal held
        held += 1
        await pump()
        if held > 2:  # the head, and the first event
            await gate.wait()

    pump = theirs.send_stream.send_all_hook
    assert pump is not None
    theirs.send_stream.send_all_hook = hold
    async with trio.open_nursery() as nursery:
        peer = Peer(loopback=True, address="127.0.0.1")
        nursery.start_soon(broker.http.serve_stream, broker, theirs, PEER, peer)
        login = base64.b64encode(b"guest:guest").decode()
        head = f"GET /api{LIVE}&path=/queues?columns=name HTTP/1.1\r\nhost: x\r\n"
        await ours.send_all(f"{head}authorization: Basic {login}\r\n\r\n".encode())
        got = b""
        # The clock of tests does not wait for the thread that looks at the password.
        while b"event: whole" not in got:
            got += await ours.receive_some(65536)
        for number in range(20):
            declare(broker.catalog, "/", f"q{number}")
            await trio.sleep(1)
        gate.set()
        await trio.sleep(1)
        gate = trio.Event()
        declare(broker.catalog, "/", "last")
        began = trio.current_time()
        while data := await ours.receive_some(65536):
            got += data
        assert trio.current_time() - began >= http_connection.HttpLimits().write_s
    # The first, the one it was stuck with, one or two for twenty changes, and the last.
    assert got.count(b"event: ") <= 5
    await over(broker)


async def test_a_client_that_goes_ends_its_stream(broker: Broker) -> None:
    for _ in range(3):
        async with http_user(broker) as user:
            await (await user.follow(f"{LIVE}&path=/whoami")).next()
            assert lives(broker)._open.total() == 1
        await over(broker)


async def test_head_follows_nothing(broker: Broker, user: HttpUser) -> None:
    heard = await user.ask("HEAD", f"{LIVE}&path=/whoami")
    assert (heard.status, heard.headers["content-type"], heard.body) == (200, "text/event-stream", b"")
    assert not lives(broker)._open
    assert (await user.ask("GET", "/live")).json["reason"].startswith("give 1 to 8 paths")


async def test_no_more_streams_are_open_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "STREAMS_OF_USER_MAX", 1)
    monkeypatch.setattr(http_api, "STREAMS_MAX", 2)
    async with running_broker() as broker:
        add_login(broker, "ann:pw", "management")
        add_login(broker, "bob:pw", "management")
        async with (
            http_user(broker) as guest,
            http_user(broker) as again,
            http_user(broker, "ann:pw") as ann,
            http_user(broker, "bob:pw") as bob,
        ):
            path = f"{LIVE}&path=/whoami"
            for user in (guest, ann):
                await (await user.follow(path)).next()
            for user in (again, bob):
                heard = await user.ask("GET", path)
                assert heard.status == 503
                assert "too many streams are open (1 of a user, 2 in all)" in heard.json["reason"]
        await over(broker)


@pytest.mark.real_clock
async def test_streams_end_with_the_broker_and_come_over_a_socket() -> None:
    """Streams are chunked; the broker's stop cuts them."""
    broker = Broker(Config(port=0, http_port=0, admin_socket=""))
    async with broker:
        stream = await trio.open_tcp_stream(*broker.http.addresses[0])
        login = base64.b64encode(b"guest:guest").decode()
        head = f"GET /api{LIVE}&path=/whoami&path=/nowhere HTTP/1.1\r\nhost: x\r\n"
        await stream.send_all(f"{head}authorization: Basic {login}\r\n\r\n".encode())
        got = b""
        while b"event: refused" not in got or b"event: whole" not in got:
            got += await stream.receive_some(65536)
        assert b"transfer-encoding: chunked" in got.lower()
        rest = b""
    try:
        while data := await stream.receive_some(65536):
            rest += data
    except trio.BrokenResourceError:
        rest += b"(reset)"
    await stream.aclose()
    # It did not end as an answer ends that is whole.
    assert not rest.endswith(b"0\r\n\r\n")
