"""Tokens at a broker of its own process, over its sockets, with an authority that is a real server."""

from __future__ import annotations

import http.client
import json

import pika
import pytest
from pika.exceptions import ProbableAuthenticationError

from tests.support.broker_process import StartBroker
from tests.support.key_server import key_server
from tests.support.pika_client import parameters
from tests.support.proton_client import ProtonClient
from tests.support.tokens import SERVER, key, token

pytestmark = pytest.mark.usefixtures("deadline")

ALL = ("configure:*/*", "write:*/*", "read:*/*", "tag:monitoring")


def test_a_token_of_an_authority_lets_in_by_every_door(start_broker: StartBroker) -> None:
    """Passwords remain valid, and a token of another authority is refused."""
    with key_server(key("RSA", "k1")) as server:
        broker = start_broker(
            *("--http-port", "0", "--auth-backends", "oauth2,internal", "--auth-failure-delay-ms", "10"),
            *("--oauth2-resource-server-id", SERVER, "--oauth2-jwks-uri", server.uri),
        )
        secret = token(*ALL, signed_by=key("RSA", "k1"), kid="k1")
        pika.BlockingConnection(parameters(broker, password=secret)).close()
        ProtonClient(broker.port, user="anyone", password=secret).close()
        address = str(broker.wait_for_log("HTTP API")["address"])
        port = int(address.rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/api/whoami", headers={"authorization": f"Bearer {secret}"})
        assert json.load(connection.getresponse())["name"] == "ann"
        connection.close()
        stranger = token(*ALL, signed_by=key("RSA", "k2"), kid="k2")
        with pytest.raises(ProbableAuthenticationError):
            pika.BlockingConnection(parameters(broker, password=stranger))
        pika.BlockingConnection(parameters(broker)).close()
        assert server.asked == 1
