"""Part 5, section 5.3: SASL. Frames at the engine, credentials at the login room."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from amqp10broker.auth.login import Authenticator, Mechanism, Peer, Slow, Success
from amqp10broker.auth.passwords import Passwords
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, Users
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.connection import (
    HEADER_AMQP,
    HEADER_SASL,
    TYPE_SASL,
    ConnectionState,
    encode_frame,
)
from amqp10broker.protocols.amqp10.link import ConnectionFailed
from amqp10broker.protocols.amqp10.types import Symbol
from tests.support.declaring import add_user
from tests.support.engine import OPEN, client, exchange, kinds, read_all, server, server_at


def sasl(performative: Any) -> bytes:
    return encode_frame(0, performative.encode(), TYPE_SASL)


def test_the_server_announces_its_mechanisms_in_order() -> None:
    """ "It is invalid for this list to be null or empty"; the first is the one it prefers."""
    connection = server(mechanisms=("PLAIN", "ANONYMOUS"))
    connection.receive(HEADER_SASL)
    header, offered = read_all(connection.take_output())
    assert header == HEADER_SASL
    assert isinstance(offered, amqp10.SaslMechanisms)
    assert offered.sasl_server_mechanisms == ("PLAIN", "ANONYMOUS")


def test_init_is_handed_to_the_owner() -> None:
    connection = server_at(ConnectionState.SASL_NEGOTIATING)
    init = amqp10.SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0u\0p", hostname="h")
    (event,) = connection.receive(sasl(init))
    assert event == amqp10.SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0u\0p", hostname="h")
    assert connection.take_output() == b""


def test_outcome_ok_leads_to_the_amqp_header() -> None:
    """ "code 0: Connection authentication succeeded"; then the AMQP layer begins."""
    connection = server_at(ConnectionState.SASL_NEGOTIATING)
    connection.receive(sasl(amqp10.SaslInit(mechanism=Symbol("ANONYMOUS"))))
    connection.sasl_outcome(0)
    (outcome,) = read_all(connection.take_output())
    assert isinstance(outcome, amqp10.SaslOutcome)
    assert outcome.code == 0
    connection.receive(HEADER_AMQP)
    assert connection.take_output() == HEADER_AMQP


def test_a_client_that_begins_without_sasl_is_shown_its_header() -> None:
    """2.2: "the server MUST write a supported protocol header"; and the log says what is missing."""
    connection = server()
    (failed,) = connection.receive(HEADER_AMQP)
    assert isinstance(failed, ConnectionFailed)
    assert failed.fault.description.startswith("the client began without SASL, which is needed")
    assert connection.take_output() == HEADER_SASL
    assert connection.state is ConnectionState.END


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_any_other_outcome_is_the_end(code: int) -> None:
    """ "code 1: Connection authentication failed due to an unspecified problem with the supplied
    credentials"; nothing that the client sends after it is handled.
    """
    connection = server_at(ConnectionState.SASL_NEGOTIATING)
    connection.receive(sasl(amqp10.SaslInit(mechanism=Symbol("PLAIN"))))
    connection.sasl_outcome(code)
    (outcome,) = read_all(connection.take_output())
    assert outcome.code == code
    assert connection.state is ConnectionState.END
    assert connection.receive(HEADER_AMQP + OPEN) == []
    assert connection.take_output() == b""


@pytest.mark.parametrize(
    "performative",
    [
        amqp10.SaslMechanisms(sasl_server_mechanisms=(Symbol("PLAIN"),)),
        amqp10.SaslChallenge(challenge=b"x"),
        amqp10.SaslOutcome(code=0),
    ],
    ids=lambda performative: type(performative).__name__,
)
def test_frames_that_only_a_server_sends_are_refused_by_one(performative: Any) -> None:
    """5.3.2: mechanisms, challenge and outcome go from server to client."""
    connection = server_at(ConnectionState.SASL_NEGOTIATING)
    events = connection.receive(sasl(performative))
    assert isinstance(events[-1], ConnectionFailed)
    assert connection.state is ConnectionState.END


INIT = sasl(amqp10.SaslInit(mechanism=Symbol("SCRAM-SHA-256"), initial_response=b"1"))
RESPONSE = sasl(amqp10.SaslResponse(response=b"2"))


@pytest.mark.parametrize(
    "frames", [[RESPONSE], [INIT, RESPONSE], [INIT, INIT]], ids=["first", "early", "twice"]
)
def test_a_sasl_frame_out_of_turn_is_refused(frames: list[bytes]) -> None:
    """5.3.2: init comes once, and a response answers a challenge."""
    connection = server_at(ConnectionState.SASL_NEGOTIATING)
    events = [event for each in frames for event in connection.receive(each)]
    assert [type(event) for event in events] == [amqp10.SaslInit] * (len(frames) - 1) + [ConnectionFailed]
    assert connection.state is ConnectionState.END


def test_each_response_answers_a_challenge_of_its_own() -> None:
    connection = server_at(ConnectionState.SASL_NEGOTIATING)
    connection.receive(INIT)
    for _ in range(2):
        connection.sasl_challenge(b"more?")
        assert connection.receive(RESPONSE) == [amqp10.SaslResponse(response=b"2")]
    assert isinstance(connection.receive(RESPONSE)[-1], ConnectionFailed)


def test_an_amqp_frame_during_sasl_ends_the_connection() -> None:
    """5.3.1: during the exchange "the frame type MUST be 0x01"."""
    connection = server_at(ConnectionState.SASL_NEGOTIATING)
    events = connection.receive(OPEN)
    assert isinstance(events[-1], ConnectionFailed)
    assert connection.take_output() == b""


def test_open_cannot_skip_sasl() -> None:
    """The AMQP layer is not read before the outcome, even when it comes in one segment."""
    connection = server()
    events = connection.receive(HEADER_SASL + OPEN)
    assert isinstance(events[-1], ConnectionFailed)
    assert connection.remote_open is None


def test_a_sasl_frame_behind_the_outcome_is_refused() -> None:
    connection = server_at(ConnectionState.HEADER_EXCHANGED)
    events = connection.receive(sasl(amqp10.SaslInit(mechanism=Symbol("PLAIN"))))
    assert isinstance(events[-1], ConnectionFailed)
    assert kinds(connection.take_output()) == ["Open", "Close"]


def test_challenge_and_response() -> None:
    """5.3.3.4: a mechanism may need more than one step."""
    one, other = client(), server(mechanisms=("ANONYMOUS",))
    one.start("ANONYMOUS", b"")
    exchange(one, other)
    other.sasl_challenge(b"more?")
    one.receive(other.take_output())
    (response,) = read_all(one.take_output())
    assert isinstance(response, amqp10.SaslResponse)
    other.sasl_outcome(0)
    (event,) = [event for event in one.receive(other.take_output()) if isinstance(event, amqp10.SaslOutcome)]
    assert event.code == 0


def test_a_failed_outcome_ends_the_client_end() -> None:
    """The client end reports the code and sends nothing more."""
    one, other = client(), server(mechanisms=("ANONYMOUS",))
    one.start("ANONYMOUS", b"")
    exchange(one, other)
    other.sasl_outcome(1)
    events, _ = exchange(one, other)
    assert events == [amqp10.SaslOutcome(code=1)]
    assert one.state is ConnectionState.END


# --- mechanisms ----------------------------------------------------------------------------------


def login(mechanism: str, response: bytes, **changes: Any) -> str | None:
    users = Users()
    for name, password in (("guest", "guest"), ("ann", "sécret")):
        add_user(users, name, PasswordRecord(PasswordAlgorithm.PLAIN, password))
    loopback = changes.pop("loopback", True)
    settings: dict[str, Any] = {
        "mechanisms": frozenset({Mechanism.PLAIN, Mechanism.ANONYMOUS}),
        "anonymous_user": "guest",
        "loopback_users": frozenset({"guest"}),
        **changes,
    }
    rules = Authenticator(
        users,
        Passwords(users, secrets.token_bytes),
        token=secrets.token_bytes,
        read_table=lambda data: None,
        **settings,
    )
    authentication = rules.begin(Peer(loopback))
    step = authentication.start(mechanism, response)
    while isinstance(step, Slow):
        step = authentication.resume(step.conclude(step.work()))
    return step.user if isinstance(step, Success) else None


@pytest.mark.rabbitmq("amqp_auth_SUITE", "sasl_plain_success")
@pytest.mark.parametrize(
    ("response", "user"),
    [
        (b"\0guest\0guest", "guest"),
        (b"somebody\0guest\0guest", "guest"),
        ("\0ann\0sécret".encode(), "ann"),
        (b"\0guest\0wrong", None),
        (b"\0guest\0", None),
        (b"\0guest\0guestx", None),
        (b"\0nobody\0guest", None),
        (b"\0GUEST\0guest", None),
        (b"guest\0guest", None),
        (b"\0guest\0guest\0", None),
        (b"", None),
        (b"\0\0", None),
        (b"\0\xff\xfe\0guest", None),
    ],
)
def test_plain(response: bytes, user: str | None) -> None:
    """RFC 4616: "message = [authzid] UTF8NUL authcid UTF8NUL passwd"; the authzid is ignored."""
    assert login("PLAIN", response) == user


@pytest.mark.rabbitmq("amqp_auth_SUITE", "sasl_anonymous_success")
@pytest.mark.parametrize("trace", [b"", b"me@example.org", b"\xff\x00"])
def test_anonymous(trace: bytes) -> None:
    """RFC 4505: the trace information is for logs, and proves nothing."""
    assert login("ANONYMOUS", trace) == "guest"


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "SCRAM-SHA-256", "plain", ""])
def test_a_mechanism_that_was_not_offered_is_refused(mechanism: str) -> None:
    """5.3.3.2: the client chooses "the SASL mechanism used for the SASL exchange" from those announced."""
    assert login(mechanism, b"\0guest\0guest") is None


def test_plain_is_refused_when_only_anonymous_is_offered() -> None:
    assert login("PLAIN", b"\0guest\0guest", mechanisms=frozenset({Mechanism.ANONYMOUS})) is None
