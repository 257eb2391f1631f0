"""SCRAM-SHA-256 against the example of RFC 7677, and its refusals."""

from __future__ import annotations

import base64
import re

import pytest

from amqp10broker.auth.passwords import ScramError, ScramServer, derive, saslprep

# RFC 7677, section 3.
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
CLIENT_FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p={PROOF}".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.fixture
def server() -> ScramServer:
    server = ScramServer(SERVER_NONCE)
    server.read_first(CLIENT_FIRST)
    server.challenge(derive("pencil", SALT, 4096))
    return server


def test_the_example_of_rfc_7677() -> None:
    server = ScramServer(SERVER_NONCE)
    server.read_first(CLIENT_FIRST)
    assert (server.user, server.authzid) == ("user", "")
    assert server.challenge(derive("pencil", SALT, 4096)) == SERVER_FIRST
    assert server.read_final(CLIENT_FINAL) == SERVER_FINAL


def test_another_password_is_refused() -> None:
    """The proof does not fit its verifier."""
    server = ScramServer(SERVER_NONCE)
    server.read_first(CLIENT_FIRST)
    server.challenge(derive("pen", SALT, 4096))
    with pytest.raises(ScramError, match="^invalid credentials$"):
        server.read_final(CLIENT_FINAL)


@pytest.mark.parametrize(
    ("message", "user", "authzid"),
    [
        (b"n,,n=a=2Cb=3Dc,r=x", "a,b=c", ""),
        (b"y,,n=user,r=x", "user", ""),
        (b"n,a=other,n=user,r=x", "user", "other"),
        (b"n,,n=user,r=x,ext=1", "user", ""),
    ],
)
def test_first_messages_are_read(message: bytes, user: str, authzid: str) -> None:
    """Escapes, a client that could bind channels but saw no offer, an authorisation identity, extensions."""
    server = ScramServer("s")
    server.read_first(message)
    assert (server.user, server.authzid) == (user, authzid)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"p=tls-unique,,n=user,r=x", "channel binding is not offered"),
        (b"n,n=user,r=x", "client-first-message is not"),
        (b"x,,n=user,r=x", "client-first-message is not"),
        (b"n,,m=must,n=user,r=x", "client-first-message is not"),
        (b"n,,n=user,r=", "client-first-message is not"),
        (b"n,,n=,r=x", "bare ="),
        (b"n,,n=a=b,r=x", "bare ="),
        (b"n,,n=\xff,r=x", "not UTF-8"),
        (b"", "client-first-message is not"),
    ],
)
def test_bad_first_messages_are_refused(message: bytes, text: str) -> None:
    """Channel binding must fail, and so must a mandatory extension that nobody knows."""
    with pytest.raises(ScramError, match=re.escape(text)):
        ScramServer("s").read_first(message)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("c=biws", "c=eSws", "channel binding data"),
        (SERVER_NONCE, "other", "nonce is not"),
        (PROOF, "!", "proof is not base64"),
        (PROOF, "c2hvcnQ=", "proof has the wrong length"),
        (PROOF, base64.b64encode(bytes(32)).decode(), "invalid credentials"),
        (f",p={PROOF}", "", "client-final-message is not"),
    ],
)
def test_bad_final_messages_are_refused(server: ScramServer, old: str, new: str, text: str) -> None:
    with pytest.raises(ScramError, match=text):
        server.read_final(CLIENT_FINAL.decode().replace(old, new).encode())


def test_a_client_that_was_told_of_no_binding_must_say_so_again() -> None:
    """Who strips "y" on the way changes what is signed (RFC 5802, section 6)."""
    server = ScramServer(SERVER_NONCE)
    server.read_first(CLIENT_FIRST.replace(b"n,,", b"y,,", 1))
    server.challenge(derive("pencil", SALT, 4096))
    with pytest.raises(ScramError, match="channel binding data"):
        server.read_final(CLIENT_FINAL)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
    ],
)
def test_saslprep_follows_the_examples_of_rfc_4013(text: str, prepared: str) -> None:
    """Section 3 of the RFC, and a space that is none."""
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "\u0627a\u0627"])
def test_saslprep_refuses_what_rfc_4013_forbids(text: str) -> None:
    with pytest.raises(ScramError):
        saslprep(text)
