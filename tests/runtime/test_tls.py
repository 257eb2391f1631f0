"""The TLS listener in one program with its clients: handshakes that fail, stall, or never come."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
import trio

from amqp10broker.errors import ConfigError
from amqp10broker.protocols.amqp10.performatives import SaslMechanisms
from amqp10broker.runtime.broker import Broker
from tests.runtime.conftest import LogRecorder
from tests.support.certificates import Certificates, certificates
from tests.support.rawframes import SASL_HEADER, FrameCutter
from tests.support.trioclient import eventually, quiet_config, running_broker, settle_down

pytestmark = pytest.mark.real_clock

__all__ = ["certificates"]


def tls_settings(certificates: Certificates, **others: Any) -> dict[str, Any]:
    return {
        "tls_certificate": certificates.server,
        "tls_key": certificates.server_key,
        **others,
    }


async def plain_socket(broker: Broker) -> trio.SocketStream:
    return await trio.open_tcp_stream(*broker.tls_addresses[0])


async def tls_stream(broker: Broker, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    stream = trio.SSLStream(
        await plain_socket(broker), context, server_hostname="localhost", https_compatible=True
    )
    with trio.fail_after(60):
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError:
            await trio.aclose_forcefully(stream)
            raise
    return stream


async def end_of(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    with trio.fail_after(60):
        try:
            while received := await stream.receive_some(65_536):
                data += received
        except trio.BrokenResourceError:
            return data
    return data


async def until_greeting(broker: Broker, count: int) -> None:
    await eventually(lambda: len(broker.connections.greetings) == count)


async def test_after_the_handshake_all_is_as_on_the_plain_port(certificates: Certificates) -> None:
    async with running_broker(**tls_settings(certificates)) as broker:
        async with await tls_stream(broker, certificates.client_context()) as stream:
            assert stream.version() == "TLSv1.3"
            await stream.send_all(SASL_HEADER)
            cutter = FrameCutter()
            got: list[Any] = []
            with trio.fail_after(60):
                while not got:
                    got += cutter.feed(bytes(await stream.receive_some(65_536)))
            assert cutter.headers == [SASL_HEADER]
            assert isinstance(got[0].body, SaslMechanisms)
            assert len(broker.connections) == 1
            assert [each.origin.transport for each in broker.connections.values()] == ["tls"]
        host, port = broker.tls_addresses[0]
        assert broker.status()["broker"]["tls_listeners"][0] == f"{host}:{port}"


async def test_a_client_that_does_not_begin_the_handshake_is_closed_in_time(
    certificates: Certificates, log: LogRecorder
) -> None:
    """The limit for the TLS handshake is the one for a greeting."""
    async with running_broker(**tls_settings(certificates, handshake_timeout_ms=50)) as broker:
        async with await plain_socket(broker) as silent:
            assert await end_of(silent) == b""
        await until_greeting(broker, 0)
        assert not broker.connections
    assert [(event, fields["reason"]) for event, fields in log.of("warning")] == [
        ("TLS handshake failed", "handshake timed out")
    ]


async def test_clients_in_the_handshake_count_as_connections(
    certificates: Certificates, log: LogRecorder
) -> None:
    """Unfinished handshakes do not give a client more than connection_max sockets."""
    async with (
        running_broker(**tls_settings(certificates, connection_max=2)) as broker,
        await plain_socket(broker),
        await plain_socket(broker) as second,
    ):
        await until_greeting(broker, 2)
        async with await plain_socket(broker) as refused:
            assert await end_of(refused) == b""
        assert [event for event, _ in log.of("warning")] == ["connection refused: connection_max is reached"]
        await second.aclose()
        await until_greeting(broker, 1)
        async with await tls_stream(broker, certificates.client_context()) as stream:
            await stream.send_all(SASL_HEADER)
            with trio.fail_after(60):
                assert await stream.receive_some(8) == SASL_HEADER


async def test_stopping_does_not_wait_for_a_handshake(certificates: Certificates) -> None:
    """A silent client does not hold up the stop."""
    with trio.fail_after(60):
        async with running_broker(
            **tls_settings(certificates, handshake_timeout_ms=3_600_000, shutdown_timeout_ms=3_600_000)
        ) as broker:
            silent = await plain_socket(broker)
            await until_greeting(broker, 1)
        async with silent:
            assert await end_of(silent) == b""


async def test_plain_text_on_the_tls_port_is_refused(certificates: Certificates, log: LogRecorder) -> None:
    """An AMQP header is no TLS hello: the socket is closed, and the log has the reason."""
    async with running_broker(**tls_settings(certificates)) as broker:
        async with await plain_socket(broker) as stream:
            await stream.send_all(SASL_HEADER + bytes(64))
            assert SASL_HEADER not in await end_of(stream)
        await until_greeting(broker, 0)
        await settle_down()
        assert not broker.connections
    ((event, fields),) = log.of("warning")
    assert event == "TLS handshake failed"
    assert "handshake timed out" not in fields["reason"]


async def test_a_hello_that_breaks_off_is_no_fault(certificates: Certificates, log: LogRecorder) -> None:
    async with running_broker(**tls_settings(certificates)) as broker:
        async with await plain_socket(broker) as stream:
            await stream.send_all(b"\x16\x03\x01\x02\x00\x01\x00")
            await until_greeting(broker, 1)
        await until_greeting(broker, 0)
        await settle_down()
    assert [event for event, _ in log.of("warning")] == ["TLS handshake failed"]
    assert not log.of("error")


async def test_a_tls_port_in_use_is_named(certificates: Certificates) -> None:
    """The plain port was free: the sentence must not name it."""
    async with running_broker(**tls_settings(certificates)) as broker:
        port = broker.tls_addresses[0][1]
        with pytest.raises(ConfigError, match=rf"^tls_port {port} on localhost cannot be used: "):
            async with Broker(quiet_config(**tls_settings(certificates, tls_port=port))):
                pytest.fail("two brokers on one port")
