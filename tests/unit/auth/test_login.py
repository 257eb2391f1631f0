"""Each mechanism lets in whom it should, and says in the log why not."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from amqp10broker.auth.login import (
    UNKNOWN_USER,
    Authenticator,
    Challenge,
    Failure,
    Mechanism,
    Peer,
    Slow,
    Step,
    Success,
)
from amqp10broker.auth.passwords import Passwords
from amqp10broker.metadata.users import Users
from tests.support.declaring import add_user, set_password

HERE = Peer(loopback=True)
NEVER_KNOWN = "; the password was never known in plain here, set it anew to use SCRAM"
REMOTE = Peer(loopback=False)
Rules = Callable[..., Authenticator]


def read_table(data: bytes) -> Mapping[str, object] | None:
    """Stands for the codec of AMQP 0-9-1, which this room does not know."""
    return {
        b"good": {"LOGIN": "guest", "PASSWORD": "guest"},
        b"bytes": {"LOGIN": b"guest", "PASSWORD": b"guest"},
        b"wrong": {"LOGIN": "guest", "PASSWORD": "x"},
        b"half": {"LOGIN": "guest"},
        b"number": {"LOGIN": "guest", "PASSWORD": 7},
    }.get(data)


@pytest.fixture
def rules(users: Users, passwords: Passwords, token: Callable[[int], bytes]) -> Rules:
    def make(**settings: Any) -> Authenticator:
        return Authenticator(users, passwords, token=token, read_table=read_table, **settings)

    return make


def log_in(
    rules: Authenticator,
    mechanism: str,
    response: bytes | None,
    *,
    peer: Peer = HERE,
    answers: Sequence[bytes] = (),
) -> Step:
    """Go through a mechanism as a connection does, with slow work done on the spot."""
    authentication = rules.begin(peer)
    step = authentication.start(mechanism, response)
    waiting = list(answers)
    while not isinstance(step, Success | Failure):
        if isinstance(step, Slow):
            step = authentication.resume(step.conclude(step.work()))
        else:
            step = authentication.resume(waiting.pop(0))
    return step


# --- PLAIN ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"\0guest\0Guest", "user 'guest': invalid credentials"),
        (b"\0unknown\0guest", f"{UNKNOWN_USER}: invalid credentials"),
        (b"\0nobody\0x", "user 'nobody': invalid credentials"),
        (b"\0guest\0", "user 'guest': blank passwords are not accepted"),
        (b"\0nobody\0", "user 'nobody': blank passwords are not accepted"),
        (b"guest\0guest", "PLAIN response is not authzid NUL authcid NUL password"),
        (b"", "PLAIN response is not authzid NUL authcid NUL password"),
        (b"\0a\0b\0c", "PLAIN response is not authzid NUL authcid NUL password"),
        (b"\0\xff\0guest", "user name is not UTF-8"),
    ],
)
def test_plain_refuses(rules: Rules, response: bytes, reason: str) -> None:
    step = log_in(rules(), "PLAIN", response)
    assert isinstance(step, Failure)
    assert step.reason == reason


def test_a_slow_login_makes_the_next_one_quick(rules: Rules, users: Users, passwords: Passwords) -> None:
    """The connection hands argon2 to a thread once."""
    add_user(users, "u", passwords.make("p"))
    first = rules().begin(HERE)
    step = first.start("PLAIN", b"\0u\0p")
    assert isinstance(step, Slow)
    assert first.resume(step.conclude(step.work())) == Success("u")
    assert rules().begin(HERE).start("PLAIN", b"\0u\0p") == Success("u")


def test_a_password_changed_while_it_is_verified_lets_nobody_in(
    rules: Rules, users: Users, passwords: Passwords
) -> None:
    """The thread verified what does not count any more."""
    add_user(users, "u", passwords.make("old"))
    authentication = rules().begin(HERE)
    step = authentication.start("PLAIN", b"\0u\0old")
    assert isinstance(step, Slow)
    set_password(users, "u", passwords.make("new"))
    assert isinstance(authentication.resume(step.conclude(step.work())), Failure)


# --- what is offered ------------------------------------------------------------------------------


def test_anonymous_and_external_are_offered_to_those_who_can_use_them(rules: Rules) -> None:
    """An anonymous user must be set, a certificate given."""
    assert rules().offered(HERE) == (Mechanism.PLAIN, Mechanism.AMQPLAIN, Mechanism.SCRAM_SHA_256)
    everything = rules(anonymous_user="guest").offered(
        Peer(loopback=True, tls=True, certificate_user="guest")
    )
    assert everything == tuple(Mechanism)


def test_passwords_stay_off_plain_connections_when_so_configured(rules: Rules) -> None:
    """PLAIN and AMQPLAIN need TLS then; SCRAM does not show the password."""
    strict = rules(plain_needs_tls=True)
    assert strict.offered(REMOTE) == (Mechanism.SCRAM_SHA_256,)
    for mechanism, response in (("PLAIN", b"\0guest\0guest"), ("AMQPLAIN", b"good")):
        assert log_in(strict, mechanism, response) == Failure(
            f"mechanism '{mechanism}' needs TLS here; use SCRAM-SHA-256, or connect with TLS"
        )
        assert log_in(strict, mechanism, response, peer=Peer(loopback=True, tls=True)) == Success("guest")


# --- loopback -------------------------------------------------------------------------------------


def test_loopback_users_come_from_this_machine_only(rules: Rules) -> None:
    local = rules(loopback_users=frozenset({"guest"}), anonymous_user="guest")
    for mechanism, response in (("PLAIN", b"\0guest\0guest"), ("AMQPLAIN", b"good"), ("ANONYMOUS", b"")):
        assert log_in(local, mechanism, response) == Success("guest")
        assert log_in(local, mechanism, response, peer=REMOTE) == Failure(
            "user 'guest' can only connect from this machine", "guest"
        )
    assert log_in(local, "PLAIN", b"\0rabbit\0hole", peer=REMOTE) == Success("rabbit")


def test_a_wrong_password_is_what_a_remote_guest_hears_of_first(rules: Rules) -> None:
    """The rule is applied to who the client is, which must be known before."""
    step = log_in(rules(loopback_users=frozenset({"guest"})), "PLAIN", b"\0guest\0x", peer=REMOTE)
    assert step == Failure("user 'guest': invalid credentials", "guest")


# --- AMQPLAIN, ANONYMOUS, EXTERNAL ----------------------------------------------------------------


@pytest.mark.parametrize("response", [b"good", b"bytes"])
def test_amqplain_reads_a_table(rules: Rules, response: bytes) -> None:
    """Strings that are UTF-8, and those that are not, come as str and as bytes."""
    assert log_in(rules(), "AMQPLAIN", response) == Success("guest")
    assert log_in(rules(), "AMQPLAIN", None, answers=[response]) == Success("guest")


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"wrong", "user 'guest': invalid credentials"),
        (b"half", "AMQPLAIN response has no LOGIN or no PASSWORD that is a string"),
        (b"number", "AMQPLAIN response has no LOGIN or no PASSWORD that is a string"),
        (b"no table", "AMQPLAIN response is not a field table"),
    ],
)
def test_amqplain_refuses(rules: Rules, response: bytes, reason: str) -> None:
    step = log_in(rules(), "AMQPLAIN", response)
    assert isinstance(step, Failure)
    assert step.reason == reason


@pytest.mark.rabbitmq("amqp_auth_SUITE", "sasl_anonymous_failure")
def test_anonymous_needs_its_user(rules: Rules) -> None:
    """Not offered without; refused if the user was deleted."""
    assert log_in(rules(), "ANONYMOUS", b"") == Failure("mechanism 'ANONYMOUS' is not offered to this client")
    step = log_in(rules(anonymous_user="gone"), "ANONYMOUS", b"")
    assert step == Failure("user 'gone', as whom ANONYMOUS logs in, does not exist", "gone")


def test_external_refuses(rules: Rules) -> None:
    """No certificate, no such user, or the wish to be another."""
    assert log_in(rules(), "EXTERNAL", b"guest") == Failure(
        "mechanism 'EXTERNAL' is not offered to this client"
    )
    peer = Peer(loopback=True, tls=True, certificate_user="guest")
    assert log_in(rules(), "EXTERNAL", b"rabbit", peer=peer) == Failure(
        "user 'guest' of the certificate wants to act as another user", "guest"
    )
    peer = Peer(loopback=True, tls=True, certificate_user="stranger")
    assert log_in(rules(), "EXTERNAL", b"", peer=peer) == Failure(
        "user 'stranger' of the certificate does not exist", "stranger"
    )


# --- SCRAM ----------------------------------------------------------------------------------------


class ScramClient:
    """The client's side, written from RFC 5802 and not from our server."""

    def __init__(self, user: str, password: str, *, header: str = "n,,") -> None:
        self.header = header
        self.bare = f"n={user},r=client"
        self.password = password.encode()
        self.signature = b""

    @property
    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, challenge: bytes) -> bytes:
        nonce, salt, iterations = (part[2:] for part in challenge.decode().split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self.password, base64.b64decode(salt), int(iterations))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        unproven = f"c={base64.b64encode(self.header.encode()).decode()},r={nonce}"
        signed = f"{self.bare},{challenge.decode()},{unproven}".encode()
        client_signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, client_signature, strict=True))
        self.signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()


def scram(
    rules: Authenticator, client: ScramClient, *, with_outcome: bool = True, first: bool = True
) -> Step:
    """Go through SCRAM until the server has read the proof."""
    authentication = rules.begin(HERE, data_with_outcome=with_outcome)
    step = authentication.start("SCRAM-SHA-256", client.first if first else None)
    if not first:
        assert step == Challenge(b"")
        step = authentication.resume(client.first)
    if isinstance(step, Failure):
        return step
    assert isinstance(step, Slow)
    step = authentication.resume(step.conclude(step.work()))
    assert isinstance(step, Challenge)
    step = authentication.resume(client.final(step.data))
    if not with_outcome and isinstance(step, Challenge):
        assert step.data == b"v=" + base64.b64encode(client.signature)
        step = authentication.resume(b"")
    return step


@pytest.mark.parametrize("first", [True, False])
def test_scram_proves_both_sides(rules: Rules, users: Users, passwords: Passwords, first: bool) -> None:
    """For passwords of the configuration and for those set later."""
    add_user(users, "u", passwords.make("p"))
    for name, password in (("guest", "guest"), ("u", "p")):
        client = ScramClient(name, password)
        step = scram(rules(), client, first=first)
        assert step == Success(name, b"v=" + base64.b64encode(client.signature))


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("guest", "wrong", "user 'guest': invalid credentials"),
        ("unknown", "guest", f"{UNKNOWN_USER}: invalid credentials"),
        ("nobody", "-", "user 'nobody': invalid credentials"),
        (
            "rabbit",
            "hole",
            f"user 'rabbit': invalid credentials{NEVER_KNOWN}",
        ),
    ],
)
def test_scram_refuses_after_the_proof(rules: Rules, user: str, password: str, reason: str) -> None:
    """Up to there, a client cannot tell an unknown user from a wrong password."""
    step = scram(rules(), ScramClient(user, password))
    assert isinstance(step, Failure)
    assert step.reason == reason


def test_scram_nonces_are_not_used_twice(rules: Rules) -> None:
    """Otherwise a recorded proof would open the door again."""
    challenges = set()
    for _ in range(3):
        authentication = rules().begin(HERE)
        step = authentication.start("SCRAM-SHA-256", b"n,,n=guest,r=same")
        assert isinstance(step, Slow)
        step = authentication.resume(step.conclude(step.work()))
        assert isinstance(step, Challenge)
        challenges.add(step.data)
    assert len(challenges) == 3


def test_a_made_up_verifier_opens_nothing_even_if_met(
    rules: Rules, passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps a stranger out is that there is no such user, not that the proof is hard."""
    known, _ = passwords.scram_record("guest")()
    monkeypatch.setattr(passwords, "scram_record", lambda name: lambda: (known, False))
    assert isinstance(scram(rules(), ScramClient("stranger", "guest")), Failure)


def test_scram_refuses_a_password_that_was_changed_meanwhile(
    rules: Rules, users: Users, passwords: Passwords
) -> None:
    """Between challenge and proof an administrator may have changed it."""
    client = ScramClient("guest", "guest")
    authentication = rules().begin(HERE)
    step = authentication.start("SCRAM-SHA-256", client.first)
    assert isinstance(step, Slow)
    step = authentication.resume(step.conclude(step.work()))
    assert isinstance(step, Challenge)
    set_password(users, "guest", passwords.make("new"))
    step = authentication.resume(client.final(step.data))
    assert step == Failure("user 'guest': the password was changed meanwhile", "guest")
