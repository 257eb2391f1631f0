"""``amqp10broker frames replay``: over real sockets, what it prints, and with which code it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from amqp10broker.cli import replaying
from amqp10broker.cli.main import main
from amqp10broker.client.blocking import connect
from amqp10broker.config import Config
from amqp10broker.testing.servers import InProcess
from amqp10broker.tools.replay import replay
from tests.support.certificates import Certificates, certificates
from tests.support.deadline import deadline
from tests.support.rawframes import message

__all__ = ["certificates", "deadline"]

LARGE = 3_000_000
"""More than sockets take at once."""


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[InProcess]:
    files = {"tls_certificate": certificates.server, "tls_key": certificates.server_key}
    server = InProcess(Config.load(flags={**files, "port": 0, "tls_port": 0, "admin_socket": ""}), 0)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def path(broker: InProcess, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("frames") / "f")
    broker.ask("declare-queue", {"name": "q"}, None)
    broker.ask("trace", {"what": "everything", "on": True, "file": path, "frames": True}, None)
    with connect(broker.host, broker.port, user="guest", password="guest") as client:
        client.sender("/queues/q").send(message(bytes(LARGE)))
        receiver = client.receiver("/queues/q", credit=1)
        receiver.accept(receiver.receive())
    broker.ask("trace", {"what": "everything", "on": False}, None)
    return path


def url(broker: InProcess, login: str = "") -> str:
    return f"amqp://{login}{broker.host}:{broker.port}"


def test_a_recording_is_played(broker: InProcess, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 0 if nothing differs, 1 otherwise."""
    assert main(["frames", "replay", path, "--url", url(broker), "--fast"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("0 differences; played ")
    assert " frames of 1 connection in " in said
    broker.ask("delete-queue", {"name": "q"}, None)
    try:
        assert main(["frames", "replay", path, "--url", url(broker), "--fast", "--format", "json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert {each["kind"] for each in document["differences"]} == {"error"}
        assert main(["frames", "replay", path, "--url", url(broker), "--fast"]) == 1
        assert capsys.readouterr().out.startswith("error: connection ")
    finally:
        broker.ask("declare-queue", {"name": "q"}, None)


@pytest.mark.usefixtures("deadline")
def test_what_waited_for_the_socket_goes_on_when_it_has_written(
    broker: InProcess, path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the next look: each step fills the socket, and looks are rarer than that."""
    monkeypatch.setattr(replay, "_AHEAD_BYTES", 1)
    monkeypatch.setattr(replaying, "_LOOK_AGAIN_S", 1_000.0)
    assert main(["frames", "replay", path, "--url", url(broker), "--fast", "--patience", "1000"]) == 0
    assert capsys.readouterr().out.startswith("0 differences; played ")


def test_it_is_played_over_tls(
    broker: InProcess,
    path: str,
    certificates: Certificates,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker's authority must be trusted; else the exit code is 3, with the fault and its remedy."""
    address, *_ = broker.ask("status", {}, None)["broker"]["tls_listeners"]
    port = int(address.rpartition(":")[2])
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca)
    assert main(["frames", "replay", path, "--url", f"amqps://localhost:{port}", "--fast"]) == 0
    assert capsys.readouterr().out.startswith("0 differences; played ")
    assert main(["frames", "replay", path, "--url", f"amqps://{broker.host}:{broker.port}"]) == 3
    assert f"no TLS with {broker.host}:{broker.port}: " in capsys.readouterr().err
    monkeypatch.setenv("SSL_CERT_FILE", certificates.strangers)
    assert main(["frames", "replay", path, "--url", f"amqps://localhost:{port}"]) == 3
    said = capsys.readouterr().err
    assert f"the certificate of localhost:{port} is not trusted: unable to get local issuer" in said
    assert "set SSL_CERT_FILE to a file of trusted certificate authorities" in said
