"""The cluster port on real sockets of this machine: TLS both ways, strangers, and whom it serves."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.auth.tls import MutualTls, mutual_tls
from amqp10broker.cluster.hello import HelloRefused
from amqp10broker.cluster.wire import ConnectionPurpose, FrameKind
from amqp10broker.config import Config
from amqp10broker.errors import ConfigError, PeerUnreachable
from amqp10broker.runtime.cluster.peer_link import UNPROVED_OF_ONE_MAX, Wires, bind_cluster, close
from amqp10broker.runtime.cluster.peers import LINKS
from amqp10broker.runtime.connections.sockets import Address, open_sockets
from tests.runtime.conftest import LogRecorder
from tests.support.certificates import Certificates
from tests.support.cluster_process import free_ports
from tests.support.deadline import DEADLINE_S
from tests.support.peer_network import Network, Node
from tests.support.trioclient import alongside

pytestmark = pytest.mark.real_clock


class SocketNode(Node):
    """A node on a port of this machine."""

    def __init__(self, number: int, name: str, port: socket.socket, wires: Wires | None = None) -> None:
        wires = wires or Wires()
        self.wires = wires
        self.address: Address = port.getsockname()[:2]
        super().__init__(Network(), number, name, sockets=[port], wires=wires)

    async def _dial(self, address: Address):  # type: ignore[no-untyped-def]
        return await self.wires.dial(address)

    def meet(self, other: SocketNode) -> None:
        self.peers.know(other.number, other.name, other.address)
        other.peers.know(self.number, self.name, self.address)


@asynccontextmanager
async def nodes(*wires: Wires | None) -> AsyncIterator[list[SocketNode]]:
    made = []
    for at, each in enumerate(wires):
        (port,) = await open_sockets("127.0.0.1", 0)
        made.append(SocketNode(at + 1, "abc"[at], port, each))
    async with trio.open_nursery() as nursery:
        for node in made:
            await nursery.start(node.run)
        with trio.fail_after(DEADLINE_S):
            yield made
        nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def complaints(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    recorder = LogRecorder()
    monkeypatch.setattr("amqp10broker.runtime.cluster.peer_link._log", recorder)
    return recorder


def mutual(certificate: str, key: str, authorities: str | None) -> MutualTls:
    made = mutual_tls(
        Config(cluster_tls_cert_file=certificate, cluster_tls_key_file=key, cluster_tls_ca_file=authorities)
    )
    assert made is not None
    return made


def tls_of(certificates: Certificates, name: str, *, trusted: bool = True) -> MutualTls:
    certificate, key = certificates.client(name, trusted=trusted)
    return mutual(certificate, key, certificates.ca)


async def exchange(one: SocketNode, other: SocketNode) -> None:
    body = bytes(range(256)) * 8_192
    await one.until("connected", other.number, ConnectionPurpose.COMMANDS)
    assert one.peers.send(
        other.number, ConnectionPurpose.COMMANDS, FrameKind.COMMANDS, 7, [body[:5], body[5:]]
    )
    await other.until("frames", one.number, ConnectionPurpose.COMMANDS)
    assert other.frames_of[one.number, ConnectionPurpose.COMMANDS][0].body == body
    one.answers["x"] = {"y": 1}
    assert await other.peers.call(one.number, {"what": "x"}, DEADLINE_S) == {"y": 1}


async def test_nodes_find_each_other_on_this_machine_without_tls() -> None:
    async with nodes(None, None) as (a, b):
        a.meet(b)
        await a.until("heard", 2, 1)
        await b.until("heard", 1, 1)
        await exchange(a, b)
        assert all(a.peers.connected(2, purpose) for purpose in LINKS)


async def test_nodes_speak_tls_with_certificates_both_ways(certificates: Certificates) -> None:
    """N5: names in certificates do not matter."""
    async with nodes(*[Wires(tls_of(certificates, name)) for name in "ab"]) as (a, b):
        a.meet(b)
        await a.until("heard", 2, 1)
        await exchange(a, b)
        b.answers["probe"] = {"cluster": "c"}
        assert await a.peers.ask_address(b.address, {"what": "probe"}, DEADLINE_S) == {"cluster": "c"}


async def test_certificate_of_a_stranger_is_refused_before_anything_is_said(
    certificates: Certificates, complaints: LogRecorder
) -> None:
    """N5: both logs report it."""
    good, bad = Wires(tls_of(certificates, "a")), Wires(tls_of(certificates, "x", trusted=False))
    async with nodes(good, bad) as (a, b):
        for asks, asked in ((a, b), (b, a)):
            with pytest.raises(PeerUnreachable, match="TLS|closed|reset|alert"):
                await asks.peers.ask_address(asked.address, {"what": "probe"}, DEADLINE_S)
        assert not [entry for entry in a.log + b.log if entry[0] == "asked"]
        reasons = [fields["reason"] for _, fields in complaints.of("warning")]
        assert any("certificate" in reason.lower() for reason in reasons)


async def test_node_without_tls_is_refused_where_tls_is_spoken(certificates: Certificates) -> None:
    async with nodes(Wires(tls_of(certificates, "a")), None) as (a, b):
        for asks, asked in ((a, b), (b, a)):
            with pytest.raises((PeerUnreachable, HelloRefused)):
                await asks.peers.ask_address(asked.address, {"what": "probe"}, DEADLINE_S)
        assert not [entry for entry in a.log + b.log if entry[0] == "asked"]


async def test_one_that_stands_between_two_tls_connections_is_found(certificates: Certificates) -> None:
    """It has a trusted certificate and relays the messages of both sides, but lacks the secret."""
    between = Wires(tls_of(certificates, "between"))
    async with nodes(*[Wires(tls_of(certificates, name)) for name in "ab"]) as (a, b):
        (port,) = await open_sockets("127.0.0.1", 0)
        port.listen()

        async def relay() -> None:
            sock, address = await trio.socket.from_stdlib_socket(port).accept()
            inner = socket.socket(fileno=sock.detach())
            one = await between.wrap(inner, address, dials=False)
            two = await between.dial(b.address)
            try:
                async with trio.open_nursery() as nursery:
                    for source, sink in ((one, two), (two, one)):
                        nursery.start_soon(pass_on, source.stream, sink.stream)
            finally:
                await close(one.stream)
                await close(two.stream)

        async def pass_on(source, sink) -> None:  # type: ignore[no-untyped-def]
            try:
                while data := await source.receive_some(65_536):
                    await sink.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await sink.aclose()

        async with alongside(relay):
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(HelloRefused, match="wrong secret"):
                await a.peers.ask_address(port.getsockname(), {"what": "probe"}, DEADLINE_S)
        port.close()


@pytest.mark.parametrize("dials", [True, False])
async def test_another_machine_is_not_spoken_to_in_the_clear(dials: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as one:
        one.connect(server.getsockname())
        with pytest.raises(
            HelloRefused, match=r"192.0.2.1:1 is not on this machine, .*cluster_plaintext = true"
        ):
            await Wires().wrap(one, ("192.0.2.1", 1), dials=dials)
        assert one.fileno() == -1


async def test_cluster_port_is_20000_above() -> None:
    """N6: the refusal has a remedy."""
    (amqp,) = await open_sockets("127.0.0.1", 0)
    with amqp:
        amqp.listen()
        taken = amqp.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cluster_port {taken} on localhost cannot be used: .*choose"):
            await bind_cluster(Config(node_name="a", cluster_port=taken), 5672)
    with pytest.raises(ConfigError, match="would be 80000, 20000 above port 60000"):
        await bind_cluster(Config(node_name="a"), 60_000)
    free = free_ports(1)
    bound = await bind_cluster(Config(node_name="a"), free)
    assert bound[0].getsockname() == ("127.0.0.1", free + 20_000)
    for sock in bound:
        sock.close()


async def test_all_addresses_in_the_clear_are_refused() -> None:
    """The node's start is refused with a clear line, instead of a connection that never comes."""
    with pytest.raises(ConfigError, match=r"on 0.0.0.0 is not on this machine.*cluster_plaintext = true"):
        await bind_cluster(Config(host="0.0.0.0", node_name="a", cluster_port=1), 5672)
    config = Config(host="0.0.0.0", node_name="a", cluster_port=free_ports(1), cluster_plaintext=True)
    for port in await bind_cluster(config, 5672):
        port.close()


# -- strangers


async def connect(node: SocketNode) -> trio.SocketStream:
    return await trio.open_tcp_stream(*node.address)


async def closed(stream: trio.SocketStream) -> None:
    try:
        while await stream.receive_some(65_536):
            pass
    except trio.BrokenResourceError:
        return


async def test_stranger_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp10broker.runtime.cluster.peer_link.GREETING_S", 0.01)
    async with nodes(None) as (a,):
        async with AsyncExitStack() as stack:
            for _ in range(2 * UNPROVED_OF_ONE_MAX):
                stream = await stack.enter_async_context(await connect(a))
                await closed(stream)
        await trio.testing.wait_all_tasks_blocked()
        assert not a.peers._listener._strangers


async def test_few_strangers_of_one_address_are_listened_to() -> None:
    """Others are closed when accepted; a node gets in as soon as one stranger has gone."""
    async with nodes(None, None) as (a, b):
        a.answers["probe"] = {}
        async with AsyncExitStack() as stack:
            strangers = [
                await stack.enter_async_context(await connect(a)) for _ in range(UNPROVED_OF_ONE_MAX)
            ]
            async with await connect(a) as late:
                await closed(late)
            with pytest.raises(PeerUnreachable):
                await b.peers.ask_address(a.address, {"what": "probe"}, DEADLINE_S)
            await strangers[0].send_all(b"\xff" * 3)
            await closed(strangers[0])
            assert await b.peers.ask_address(a.address, {"what": "probe"}, DEADLINE_S) == {}


async def test_nodes_that_are_known_are_not_strangers() -> None:
    async with nodes(None, None) as (a, b):
        a.meet(b)
        await b.until("heard", 1, 1)
        # One of its three connections is enough to be heard; the others may still be greeting.
        with trio.fail_after(DEADLINE_S):
            while b.peers._listener._strangers:  # noqa: ASYNC110
                await trio.sleep(0.001)


@settings(max_examples=30)
@given(st.lists(st.binary(min_size=1, max_size=2_000), min_size=1, max_size=4))
def test_random_bytes_get_no_further_than_the_greeting(sent: list[bytes]) -> None:
    """The connection ends, no node gets a message, and the port goes on."""

    async def run() -> None:
        async with nodes(None, None) as (a, b):
            a.answers["probe"] = {}
            async with await connect(a) as stream:
                try:
                    for each in sent:
                        await stream.send_all(each)
                    await stream.send_eof()
                except trio.BrokenResourceError:
                    pass
                await closed(stream)
            assert a.log == []
            assert await b.peers.ask_address(a.address, {"what": "probe"}, DEADLINE_S) == {}

    trio.run(run)


async def test_port_connected_to_itself_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A free port in the range of outgoing ones may do so; the connection would keep the port taken."""
    (port,) = await open_sockets("127.0.0.1", 0)
    address = port.getsockname()
    port.close()
    real = trio.socket.socket

    def bound(*arguments: int) -> trio.socket.SocketType:
        made = real(*arguments)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made._sock.bind(address)  # type: ignore[attr-defined]
        return made

    monkeypatch.setattr(trio.socket, "socket", bound)
    with pytest.raises(OSError, match="nobody listens"):
        await Wires().dial(address)


async def test_mutual_tls_names_its_settings(certificates: Certificates, tmp_path: Path) -> None:
    certificate, key = certificates.client("a")
    cases: list[tuple[Callable[[], MutualTls], str]] = [
        (lambda: mutual(certificate, key, None), "cluster_tls_ca_file is not given"),
        (lambda: mutual(str(tmp_path / "x"), key, certificates.ca), "cluster_tls_cert_file names"),
        (lambda: mutual(certificate, str(tmp_path / "x"), certificates.ca), "cluster_tls_key_file names"),
        (lambda: mutual(certificate, key, key), "cluster_tls_ca_file holds no certificate"),
    ]
    for make, problem in cases:
        with pytest.raises(ConfigError, match=problem):
            make()
