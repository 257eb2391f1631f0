"""The administration socket's requests: what is awaited, what follows, and what cannot be asked."""

from __future__ import annotations

import errno
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import memory_stream_pair

from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations import running
from amqp10broker.operations.running import CLOSED_BY_OPERATOR
from amqp10broker.protocols.amqp091.methods import ConnectionClose, ConnectionCloseOk
from amqp10broker.protocols.amqp10.performatives import Close, Open, SaslOutcome
from amqp10broker.queues.commands import Answer, Delete, Purge, Refusal
from amqp10broker.runtime.admin import admin
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections import login
from amqp10broker.runtime.mailbox import Mailbox
from tests.runtime.conftest import LogRecorder
from tests.support.admin_requests import ask, asked
from tests.support.declaring import declare, declare_exchange
from tests.support.deferred_decisions import DeferredDecisions
from tests.support.queue_handles import FakeHandle
from tests.support.rawframes import attach_receiver, attach_sender, credit, frame, open_frame, transfer
from tests.support.rawframes import login as sasl
from tests.support.trioclient import Client, connect, running_broker, settle_down
from tests.support.trioclient091 import Client091, connect091


class Mute(FakeHandle):
    """A queue that says nothing until it is told to; the handle of a `DeclaredQueue`."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker

    def reply(self, ready: int) -> None:
        letter: Any = self.commands.pop(0)
        request = letter.request
        self.broker.reply_registry.post({request.reply_to: [Answer(request, ready, 0)]})


def put_mute(broker: Broker, name: str) -> Mute:
    """Declare a queue whose task never answers by itself."""
    handle = Mute(broker)
    vhost = broker.catalog.lookup_vhost("/")
    vhost.queues[name] = DeclaredQueue(name, "/", "classic", True, None, False, {}, handle)
    return handle


# --- awaiting queues ------------------------------------------------------------------------------


async def test_an_operation_awaits_its_queue(broker: Broker) -> None:
    """The queue's counts follow everything that was posted before."""
    assert (await ask(broker, "declare-queue", name="q"))["created"]
    client = await connect(broker).open()
    await client.send(attach_sender(0, "/queues/q"))
    await client.idle()
    await client.submit(*[transfer(0, number, b"x", settled=True) for number in range(5)])
    assert (await ask(broker, "get-queue", name="q"))["message_count"] == 5
    assert not (await ask(broker, "declare-queue", name="q"))["created"]
    assert await ask(broker, "purge-queue", name="q") == {"message_count": 5}
    assert await ask(broker, "delete-queue", name="q") == {"message_count": 0}
    refused = await asked(broker, "get-queue", name="q")
    assert (refused["ok"], refused["kind"], refused["resource"]) == (False, "NotFound", "queue 'q'")


async def test_what_waits_is_told_with_what_to_do(broker: Broker) -> None:
    """Idle links are listed only on request, behind those that wait."""
    for name in ("q", "empty"):
        await ask(broker, "declare-queue", name=name)
    client = await connect(broker).open()
    await client.send(attach_sender(0, "/queues/q"), attach_receiver(1, "/queues/q"))
    await client.send(attach_receiver(2, "/queues/empty"), credit(2, 5), transfer(0, 0, b"x"))
    await client.idle()
    found = await ask(broker, "waiting")
    assert [(each["waits"], each["queue"]) for each in found["waiting"]] == [("no-credit-never-granted", "q")]
    assert found["waiting"][0]["to_do"].startswith("let the client grant credit")
    assert found["summary"]["reasons"] == {"no-credit-never-granted": 1, "queue-empty-nothing-routed": 1}
    with_idle = await ask(broker, "waiting", idle=True)
    assert [(each["queue"], each["idle"]) for each in with_idle["waiting"]] == [("q", False), ("empty", True)]
    assert (await ask(broker, "waiting", longer=3600))["waiting"] == []
    refused = await asked(broker, "waiting", reason="no-such")
    assert (refused["ok"], refused["kind"]) == (False, "BadRequest")


async def test_several_requests_wait_at_the_same_time(broker: Broker) -> None:
    """Each request has its own mailbox, so answers may come in another order than the requests."""
    one, two = put_mute(broker, "one"), put_mute(broker, "two")
    counts: dict[str, int] = {}

    async def inspect(name: str) -> None:
        counts[name] = (await ask(broker, "get-queue", name=name))["message_count"]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(inspect, "one")
        nursery.start_soon(inspect, "two")
        await settle_down()
        two.reply(2)
        await settle_down()
        assert counts == {"two": 2}
        assert await ask(broker, "list-users") != []
        one.reply(1)
    assert counts == {"one": 1, "two": 2}


async def test_a_queue_that_goes_meanwhile_is_not_found(broker: Broker) -> None:
    """The request is behind a delete in the mailbox, so the answer is not found."""
    await ask(broker, "declare-queue", name="q")
    queue = broker.catalog.lookup_vhost("/").lookup("q")
    queue.handle.post(Delete())
    started = trio.current_time()
    refused = await asked(broker, "purge-queue", name="q")
    assert refused["error"] == "no queue 'q' in vhost '/'"
    assert trio.current_time() == started


async def test_a_queue_that_fails_meanwhile_answers_what_was_put_before(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in its task ends it; requests in its mailbox are still answered."""
    await ask(broker, "declare-queue", name="q")
    handle: Any = broker.catalog.lookup_vhost("/").lookup("q").handle
    mailbox: Mailbox[Any] = Mailbox()
    request = broker.reply_registry.open("test", mailbox).request()
    real = type(handle.queue).apply

    def fail_once(queue: Any, command: Any, now_ms: int) -> None:
        monkeypatch.setattr(type(handle.queue), "apply", real)
        handle.post(Purge(request))
        raise RuntimeError("broken")

    monkeypatch.setattr(type(handle.queue), "apply", fail_once)
    handle.post(Delete())
    await settle_down()
    assert mailbox.waiting
    assert await mailbox.take_all() == [[Answer(request, 0, 0, Refusal.GONE)]]


async def test_a_queue_that_does_not_answer_does_not_hang_its_client(broker: Broker) -> None:
    """After a time shorter than the command line's, the client gets an error."""
    put_mute(broker, "q")
    started = trio.current_time()
    refused = await asked(broker, "purge-queue", name="q")
    assert "has not answered for 8 s" in refused["error"]
    assert trio.current_time() - started == pytest.approx(admin.ANSWER_S)
    assert len(broker.reply_registry) == 0, "the answer that never came is waited for still"


async def test_an_argument_that_is_typed_wrongly_is_asked_about_and_a_clients_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may declare anything, as with RabbitMQ: the log suggests once the intended argument."""
    log = LogRecorder()
    monkeypatch.setattr("amqp10broker.runtime.queues.queues._log", log)
    async with running_broker() as broker:
        refused = await asked(broker, "declare-queue", name="q", arguments={"x-max-lenght": 5})
        assert refused["error"] == "no queue knows argument 'x-max-lenght'; did you mean x-max-length?"
        assert await ask(broker, "list-queues") == []
        assert (await ask(broker, "declare-queue", name="q", arguments={"x-of-a-plugin": 5}))["created"]
        assert log.entries == []
        for name in ("a", "b"):
            vhost = broker.catalog.lookup_vhost("/")
            declare(
                broker.catalog, vhost, name, durable=True, auto_delete=False, arguments={"x-max-lenght": 5}
            )
        [(event, fields)] = log.of("warning")
        assert event == "no queue knows argument 'x-max-lenght', it means nothing; did you mean x-max-length?"
        assert fields == {"queue": "a", "vhost": "/"}


# --- passwords ------------------------------------------------------------------------------------


async def test_passwords_are_hashed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operation runs with the finished record; the plain password is stored nowhere."""
    slow: list[Any] = []
    run_slow = login.run_slow

    async def note(work: Any) -> Any:
        slow.append(work)
        return await run_slow(work)

    monkeypatch.setattr(login, "run_slow", note)
    async with running_broker() as broker:
        await ask(broker, "add-user", user="u", password="secret", tags=["monitoring"])
        record = broker.passwords.record("u")
        assert record.algorithm == "argon2id"
        assert broker.passwords.slow("u", b"secret")()
        await ask(broker, "change-password", user="u", password="other")
        assert broker.passwords.slow("u", b"other")()
        assert not broker.passwords.slow("u", b"secret")()
        await ask(broker, "change-password", user="u")
        assert broker.passwords.record("u") is None
        assert len(slow) == 2


async def test_passwords_of_definitions_are_hashed_in_a_thread_each_with_its_own_salt() -> None:
    """Two users have the same password, and their records do not show it."""
    users = [{"name": name, "password": "same", "tags": []} for name in ("a", "b")]
    async with running_broker() as broker:
        report = await ask(broker, "import-definitions", document={"users": users})
        assert report["loaded"]["users"] == 2
        records = [broker.passwords.record(name) for name in ("a", "b")]
        values = [record.value for record in records if record is not None]
        assert len(set(values)) == 2
        assert all(broker.passwords.slow(name, b"same")() for name in ("a", "b"))
        exported = await ask(broker, "export-definitions")
        assert "same" not in json.dumps(exported)


@pytest.mark.parametrize("password", ["", "a\0b"])
async def test_a_bad_password_adds_nobody(broker: Broker, password: str) -> None:
    refused = await asked(broker, "add-user", user="u", password=password)
    assert refused["kind"] == "InvalidArgument"
    assert broker.catalog.users.by_name.get("u") is None


# --- what follows ---------------------------------------------------------------------------------


async def both_protocols(broker: Broker, user: str, vhost: str) -> tuple[Client, Client091]:
    """Open a connection of each protocol for a user whose password is its name."""
    ten = connect(broker)
    assert (await ten.call(SaslOutcome, sasl("PLAIN", f"\0{user}\0{user}".encode()))).code == 0
    await ten.send(open_frame(hostname=f"vhost:{vhost}"))
    await ten.expect(Open)
    old = await connect091(broker).open(user=user, password=user, vhost=vhost)
    return ten, old


async def closed_with(ten: Client, old: Client091) -> list[tuple[object, str]]:
    """Return condition and text of each client's close when its connection is closed."""
    close = await ten.until(Close)
    await ten.send(frame(0, Close()))
    assert await ten.rest() == []
    got = await old.next_or_end()
    method = got[1]
    assert isinstance(method, ConnectionClose)
    await old.send(0, ConnectionCloseOk())
    assert await old.next_or_end() is None
    return [(str(close.error.condition), close.error.description), (method.reply_code, method.reply_text)]


@pytest.mark.rabbitmq("vhost_SUITE", "single_node_vhost_deletion_forces_connection_closure")
async def test_connections_to_a_deleted_virtual_host_are_closed(broker: Broker) -> None:
    """Both protocols get a close; connections to others stay, and the deleted queues end."""
    await ask(broker, "add-vhost", name="v")
    await ask(broker, "set-permissions", "v", user="guest", configure=".*", write=".*", read=".*")
    await ask(broker, "declare-queue", "v", name="q")
    handle = broker.catalog.lookup_vhost("v").lookup("q").handle
    stays = await connect(broker).open()
    ten, old = await both_protocols(broker, "guest", "v")
    assert await ask(broker, "delete-vhost", name="v") == {"name": "v", "queues": 1}
    assert await closed_with(ten, old) == [
        ("amqp:internal-error", "Connection forced: vhost 'v' is deleted"),
        (320, "CONNECTION_FORCED - vhost 'v' is deleted"),
    ]
    await settle_down()
    assert handle.queue.deleted  # type: ignore[attr-defined]
    assert await stays.idle() == []
    assert [each.vhost for each in broker.connections.values()] == ["/"]
    assert (await asked(broker, "list-queues", "v"))["error"] == "vhost v not found"


async def test_connections_of_a_deleted_user_are_closed(broker: Broker) -> None:
    await ask(broker, "add-user", user="u", password="u")
    await ask(broker, "set-permissions", user="u", configure=".*", write=".*", read=".*")
    stays = await connect(broker).open()
    ten, old = await both_protocols(broker, "u", "/")
    await ask(broker, "delete-user", user="u")
    assert [text for _, text in await closed_with(ten, old)] == [
        "Connection forced: user 'u' is deleted",
        "CONNECTION_FORCED - user 'u' is deleted",
    ]
    assert await stays.idle() == []


async def test_a_refused_delete_closes_nobody(broker: Broker) -> None:
    """The virtual host or user does not exist, so nothing is closed."""
    client = await connect(broker).open()
    assert not (await asked(broker, "delete-vhost", name="no"))["ok"]
    assert not (await asked(broker, "delete-user", user="no"))["ok"]
    assert await client.idle() == []


@pytest.mark.parametrize(("reason", "told"), [("", CLOSED_BY_OPERATOR), ("tidy up", "tidy up")])
async def test_a_connection_is_closed_by_its_number(broker: Broker, reason: str, told: str) -> None:
    client = await connect(broker).open()
    (number,) = broker.connections
    response = await asked(broker, "close-connection", id=number, reason=reason)
    assert response == {"ok": True, "result": {"id": number}}
    assert (await client.until(Close)).error.description == f"Connection forced: {told}"
    response = await asked(broker, "close-connection", id=77)
    assert (response["kind"], response["error"]) == ("NotFound", "no connection 77")
    for bad, words in ((True, "must be an integer"), ("1", "must be an integer"), (None, "is missing")):
        assert words in (await asked(broker, "close-connection", id=bad))["error"]


# --- requests -------------------------------------------------------------------------------------


async def test_users_can_be_managed_without_the_default_virtual_host(broker: Broker) -> None:
    """It may be deleted; operations that need a virtual host must then name one."""
    await ask(broker, "delete-vhost", name="/")
    await ask(broker, "add-user", user="u")
    await ask(broker, "add-vhost", name="v")
    await ask(broker, "declare-queue", "v", name="q")
    assert [each["name"] for each in await ask(broker, "list-vhosts")] == ["v"]
    for operation, given in (
        ("list-queues", {}),
        ("declare-queue", {"name": "q"}),
        ("set-permissions", {"user": "u", "configure": "", "write": "", "read": ""}),
        ("list-permissions", {}),
    ):
        assert (await asked(broker, operation, **given))["error"] == "vhost / not found"


async def test_a_queue_for_one_connection_cannot_be_declared_here(broker: Broker) -> None:
    """The connection of the admin socket ends at once, so no client could ever use the queue."""
    refused = await asked(broker, "declare-queue", name="q", exclusive=True)
    assert "leave out exclusive" in refused["error"]
    assert await ask(broker, "list-queues") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "not a request"),
        (b"[]", "not a request"),
        (b'{"op": 1}', "not a request"),
        (b'{"op": ["status"]}', "not a request"),
        (b'{"op": "nonsense"}', "with op one of add-member, add-user, add-vhost, alarm"),
        (b"\xff", "not a request"),
        (b"[" * 100_000, "not a request"),
        (b'{"op": "list-queues", "arguments": []}', "'arguments' must be an object"),
        (b'{"op": "list-queues", "vhost": 1}', "'vhost' a string"),
        (b'{"op": "list-queues", "arguments": {"x": 1}}', "bad queue property"),
        (b'{"op": "purge-queue"}', "'name' is missing"),
        (b'{"op": "alarm", "arguments": {"name": "memory"}}', "'on' is missing: give true or false"),
        (b'{"op": "alarm", "arguments": {"name": "air", "on": true}}', "it must be one of memory, disk"),
        (b'{"op": "set", "arguments": {"name": "max_link_credit", "value": 0}}', "must be an integer"),
        (b'{"op": "import-definitions", "arguments": {"document": {"users": [1]}}}', "must be an object"),
        (b'{"op": "import-definitions", "arguments": {"document": {"users": {}}}}', "must be a list"),
        (b'{"op": "record-start", "arguments": {"folder": ""}}', "is no path"),
        (b'{"op": "record-start", "arguments": {"folder": "a\\u0000b"}}', "is no path"),
        (b'{"op": "trace", "arguments": {"what": "guest", "on": true, "file": ""}}', "is no path"),
        (b'{"op": "trace", "arguments": {"what": "guest", "on": true, "file": "a\\u0000b"}}', "is no path"),
    ],
)
async def test_what_is_no_request_is_answered_in_words(broker: Broker, line: bytes, words: str) -> None:
    """Whatever arrives, the broker answers and goes on."""
    response = await admin.answer(broker, line)
    assert not response["ok"]
    assert words in response["error"]


async def test_a_fault_of_ours_is_answered_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []

    class Log:
        def error(self, event: str, **fields: Any) -> None:
            noted.append(event)

    def fail(broker: Broker, selection: object) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(admin, "_log", Log())
    monkeypatch.setattr(Broker, "view", fail)
    async with running_broker() as broker:
        response = await admin.answer(broker, b'{"op": "status"}')
        assert "a fault in the broker (KeyError)" in response["error"]
        assert noted == ["request failed by a fault in the broker"]


async def test_values_that_json_lacks_are_shown_as_text(broker: Broker) -> None:
    """Arguments of AMQP clients may be bytes, or numbers that are not finite."""
    declare_exchange(broker.catalog, "/", "x", "fanout", arguments={"b": b"\xff", "n": float("nan")})
    response = await asked(broker, "list-exchanges")
    shown = json.loads(admin._encoded(response))["result"]
    assert [each["arguments"] for each in shown if each["name"] == "x"] == [{"b": "\\xff", "n": "nan"}]


@pytest.mark.parametrize("name", [b"\\udcff", b"a\\uD800", b"\xed\xa0\x80"])
async def test_names_that_are_no_text_are_refused(broker: Broker, name: bytes) -> None:
    """No frame, log or file could hold such a name afterwards."""
    line = b'{"op": "declare-queue", "arguments": {"name": "%b"}}' % name
    response = await admin.answer(broker, line)
    assert not response["ok"]
    assert "half a character in it, a lone surrogate: write it in UTF-8" in response["error"]
    assert await ask(broker, "list-queues") == []
    name_of_two = b'{"op": "declare-queue", "arguments": {"name": "\\ud83d\\ude00"}}'
    assert (await admin.answer(broker, name_of_two))["ok"]


async def test_an_answer_that_is_no_json_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets an error and it is logged; no other client is affected."""
    monkeypatch.setattr(running, "document", lambda view: {b"key": 1})
    async with running_broker() as broker:
        ours, theirs = memory_stream_pair()
        await ours.send_all(b'{"op": "status"}\n')
        await ours.send_eof()
        await admin.serve_lines(broker, theirs)
        response = json.loads(await ours.receive_some())
        assert "a fault in the broker (TypeError)" in response["error"]


async def test_the_socket_outlives_a_lack_of_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A client that cannot be accepted waits until a file is free; the broker goes on."""
    original = trio.SocketListener.accept
    missing = [OSError(errno.EMFILE, "too many open files")] * 2

    async def accept(listener: trio.SocketListener) -> trio.SocketStream:
        if missing:
            await trio.lowlevel.checkpoint()
            raise missing.pop()
        return await original(listener)

    monkeypatch.setattr(trio.SocketListener, "accept", accept)
    path = str(tmp_path / "admin.sock")
    async with running_broker(admin_socket=path), await trio.open_unix_socket(path) as client:
        await client.send_all(b'{"op": "status"}\n')
        assert json.loads(await client.receive_some())["ok"]
    assert not missing


# --- lines ----------------------------------------------------------------------------------------


async def test_requests_of_one_client_are_answered_in_order_in_whatever_pieces(broker: Broker) -> None:
    """Half a line waits for its other half; several at once are worked off one after the other."""
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admin.serve_lines, broker, theirs)
        await ours.send_all(b'{"op": "declare-queue", "arguments": {"na')
        await settle_down()
        await ours.send_all(b'me": "q"}}\n{"op": "get-queue", "arguments": {"name": "q"}}\nnonsense\n')
        answers = b""
        while answers.count(b"\n") < 3:
            answers += await ours.receive_some()
        first, second, third = map(json.loads, answers.splitlines())
        assert first["result"]["created"]
        assert second["result"]["name"] == "q"
        assert not third["ok"]
        await ours.aclose()


async def test_a_client_that_says_nothing_is_let_go(broker: Broker) -> None:
    """The limit is five minutes; a client that waits for an answer stays."""
    ours, theirs = memory_stream_pair()
    started = trio.current_time()
    await ours.send_all(b'{"op": "status"}')
    await admin.serve_lines(broker, theirs)
    assert trio.current_time() - started == pytest.approx(admin.IDLE_S)


async def test_a_request_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the limit, and then the client is closed."""
    monkeypatch.setattr(admin, "REQUEST_BYTES_MAX", 1_000)
    async with running_broker() as broker:
        ours, theirs = memory_stream_pair()
        await ours.send_all(b"x" * 1_001)
        await admin.serve_lines(broker, theirs)
        assert "longer than 1000 bytes" in json.loads(await ours.receive_some())["error"]


async def test_an_operation_waits_for_what_is_decided_later(broker: Broker) -> None:
    """It then waits for its queue too; a decision that never comes is an error."""
    slow = broker.propose = DeferredDecisions(broker.catalog)
    got: list[dict[str, Any]] = []

    async def ask(op: str, **given: Any) -> None:
        got.append(await asked(broker, op, **given))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(partial(ask, "declare-queue", name="q"))
            await trio.testing.wait_all_tasks_blocked()
            assert broker.catalog.lookup_vhost("/").find("q") is None or got
            decided = slow.decide()
            broker.reply_registry.post({decided.ref.reply_to: decided})  # type: ignore[dict-item]
            await trio.testing.wait_all_tasks_blocked()
    assert [each["result"]["created"] for each in got] == [True, False]
    refused = await asked(broker, "declare-exchange", name="x")
    assert "it has not been decided for 40 s" in refused["error"]
