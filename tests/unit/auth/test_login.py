"""Logins, the turns of their verification, and what a user may do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from amqp10broker.auth import authorise, login
from amqp10broker.auth.authorise import Access, CatalogGrants, check_vhost_access
from amqp10broker.auth.passwords import Passwords
from amqp10broker.errors import NotAllowed, PermissionDenied
from amqp10broker.metadata.users import Permission, TopicPermission, Users
from tests.support import declaring
from tests.support.scram_client import ScramClient

HERE = login.Peer(loopback=True)
NEVER_KNOWN = "; the password was never known in plain here, set it anew to use SCRAM"
REMOTE = login.Peer(loopback=False)
Rules = Callable[..., login.Authenticator]


def read_table(data: bytes) -> Mapping[str, object] | None:
    """This stands in for the codec of AMQP 0-9-1, which these tests do not import."""
    return {
        b"good": {"LOGIN": "guest", "PASSWORD": "guest"},
        b"bytes": {"LOGIN": b"guest", "PASSWORD": b"guest"},
        b"wrong": {"LOGIN": "guest", "PASSWORD": "x"},
        b"half": {"LOGIN": "guest"},
        b"number": {"LOGIN": "guest", "PASSWORD": 7},
    }.get(data)


@pytest.fixture
def rules(users: Users, passwords: Passwords, token: Callable[[int], bytes]) -> Rules:
    def make(**settings: Any) -> login.Authenticator:
        return login.Authenticator(users, passwords, token=token, read_table=read_table, **settings)

    return make


def log_in(
    rules: login.Authenticator,
    mechanism: str,
    response: bytes | None,
    *,
    peer: login.Peer = HERE,
    answers: Sequence[bytes] = (),
) -> login.Step:
    """Go through a mechanism as a connection does, with slow work done in place."""
    authentication = rules.begin(peer)
    step = authentication.start(mechanism, response)
    waiting = list(answers)
    while not isinstance(step, login.Success | login.Failure):
        if isinstance(step, login.Slow):
            step = authentication.resume(step.conclude(step.work()))
        else:
            step = authentication.resume(waiting.pop(0))
    return step


# --- PLAIN ----------------------------------------------------------------------------------------


NO_PLAIN = "PLAIN response is not authzid NUL authcid NUL password"
NO_AMQPLAIN = "AMQPLAIN response has no LOGIN or no PASSWORD that is a string"


@pytest.mark.parametrize(
    ("mechanism", "response", "reason"),
    [
        ("PLAIN", b"\0guest\0Guest", "user 'guest': invalid credentials"),
        ("PLAIN", b"\0unknown\0guest", f"{login.UNKNOWN_USER}: invalid credentials"),
        ("PLAIN", b"\0nobody\0x", "user 'nobody': invalid credentials"),
        ("PLAIN", b"\0guest\0", "user 'guest': blank passwords are not accepted"),
        ("PLAIN", b"\0nobody\0", "user 'nobody': blank passwords are not accepted"),
        ("PLAIN", b"guest\0guest", NO_PLAIN),
        ("PLAIN", b"", NO_PLAIN),
        ("PLAIN", b"\0a\0b\0c", NO_PLAIN),
        ("PLAIN", b"\0\xff\0guest", "user name is not UTF-8"),
        ("AMQPLAIN", b"wrong", "user 'guest': invalid credentials"),
        ("AMQPLAIN", b"half", NO_AMQPLAIN),
        ("AMQPLAIN", b"number", NO_AMQPLAIN),
        ("AMQPLAIN", b"no table", "AMQPLAIN response is not a field table"),
    ],
)
def test_a_response_is_refused(rules: Rules, mechanism: str, response: bytes, reason: str) -> None:
    step = log_in(rules(), mechanism, response)
    assert isinstance(step, login.Failure)
    assert step.reason == reason


def test_a_slow_login_makes_the_next_one_quick(rules: Rules, users: Users, passwords: Passwords) -> None:
    """The connection runs argon2 in a thread only once."""
    declaring.add_user(users, "u", passwords.make("p"))
    first = rules().begin(HERE)
    step = first.start("PLAIN", b"\0u\0p")
    assert isinstance(step, login.Slow)
    assert first.resume(step.conclude(step.work())) == login.Success("u")
    assert rules().begin(HERE).start("PLAIN", b"\0u\0p") == login.Success("u")


def test_a_password_changed_while_it_is_verified_lets_nobody_in(
    rules: Rules, users: Users, passwords: Passwords
) -> None:
    """The thread has verified a password that is no longer valid."""
    declaring.add_user(users, "u", passwords.make("old"))
    authentication = rules().begin(HERE)
    step = authentication.start("PLAIN", b"\0u\0old")
    assert isinstance(step, login.Slow)
    declaring.set_password(users, "u", passwords.make("new"))
    assert isinstance(authentication.resume(step.conclude(step.work())), login.Failure)


# --- what is offered ------------------------------------------------------------------------------


def test_anonymous_and_external_are_offered_to_those_who_can_use_them(rules: Rules) -> None:
    """ANONYMOUS needs a configured user, EXTERNAL a certificate."""
    assert rules().offered(HERE) == (
        login.Mechanism.PLAIN,
        login.Mechanism.AMQPLAIN,
        login.Mechanism.SCRAM_SHA_256,
    )
    everything = rules(anonymous_user="guest").offered(
        login.Peer(loopback=True, tls=True, certificate_user="guest")
    )
    assert everything == tuple(login.Mechanism)


def test_passwords_stay_off_plain_connections_when_so_configured(rules: Rules) -> None:
    """PLAIN and AMQPLAIN then need TLS; SCRAM does not reveal the password."""
    strict = rules(plain_needs_tls=True)
    assert strict.offered(REMOTE) == (login.Mechanism.SCRAM_SHA_256,)
    for mechanism, response in (("PLAIN", b"\0guest\0guest"), ("AMQPLAIN", b"good")):
        assert log_in(strict, mechanism, response) == login.Failure(
            f"mechanism '{mechanism}' needs TLS here; use SCRAM-SHA-256, or connect with TLS"
        )
        assert log_in(strict, mechanism, response, peer=login.Peer(loopback=True, tls=True)) == login.Success(
            "guest"
        )


# --- loopback -------------------------------------------------------------------------------------


def test_loopback_users_come_from_this_machine_only(rules: Rules) -> None:
    local = rules(loopback_users=frozenset({"guest"}), anonymous_user="guest")
    for mechanism, response in (("PLAIN", b"\0guest\0guest"), ("AMQPLAIN", b"good"), ("ANONYMOUS", b"")):
        assert log_in(local, mechanism, response) == login.Success("guest")
        assert log_in(local, mechanism, response, peer=REMOTE) == login.Failure(
            "user 'guest' can only connect from this machine", "guest"
        )
    assert log_in(local, "PLAIN", b"\0rabbit\0hole", peer=REMOTE) == login.Success("rabbit")


def test_a_wrong_password_is_what_a_remote_guest_hears_of_first(rules: Rules) -> None:
    """The rule depends on the user, so the password is verified first."""
    step = log_in(rules(loopback_users=frozenset({"guest"})), "PLAIN", b"\0guest\0x", peer=REMOTE)
    assert step == login.Failure("user 'guest': invalid credentials", "guest")


# --- AMQPLAIN, ANONYMOUS, EXTERNAL ----------------------------------------------------------------


@pytest.mark.parametrize("response", [b"good", b"bytes"])
def test_amqplain_reads_a_table(rules: Rules, response: bytes) -> None:
    """Strings that are UTF-8 are read as str, others as bytes."""
    assert log_in(rules(), "AMQPLAIN", response) == login.Success("guest")
    assert log_in(rules(), "AMQPLAIN", None, answers=[response]) == login.Success("guest")


@pytest.mark.rabbitmq("amqp_auth_SUITE", "sasl_anonymous_failure")
def test_anonymous_needs_its_user(rules: Rules) -> None:
    """It is not offered without a user, nor accepts a deleted one."""
    assert log_in(rules(), "ANONYMOUS", b"") == login.Failure(
        "mechanism 'ANONYMOUS' is not offered to this client"
    )
    step = log_in(rules(anonymous_user="gone"), "ANONYMOUS", b"")
    assert step == login.Failure("user 'gone', as whom ANONYMOUS logs in, does not exist", "gone")


def test_external_refuses(rules: Rules) -> None:
    assert log_in(rules(), "EXTERNAL", b"guest") == login.Failure(
        "mechanism 'EXTERNAL' is not offered to this client"
    )
    peer = login.Peer(loopback=True, tls=True, certificate_user="guest")
    assert log_in(rules(), "EXTERNAL", b"rabbit", peer=peer) == login.Failure(
        "user 'guest' of the certificate wants to act as another user", "guest"
    )
    peer = login.Peer(loopback=True, tls=True, certificate_user="stranger")
    assert log_in(rules(), "EXTERNAL", b"", peer=peer) == login.Failure(
        "user 'stranger' of the certificate does not exist", "stranger"
    )


# --- SCRAM ----------------------------------------------------------------------------------------


def scram(
    rules: login.Authenticator, client: ScramClient, *, with_outcome: bool = True, first: bool = True
) -> login.Step:
    """Go through SCRAM until the server has read the proof."""
    authentication = rules.begin(HERE, data_with_outcome=with_outcome)
    step = authentication.start("SCRAM-SHA-256", client.first() if first else None)
    if not first:
        assert step == login.Challenge(b"")
        step = authentication.resume(client.first())
    if isinstance(step, login.Failure):
        return step
    assert isinstance(step, login.Slow)
    step = authentication.resume(step.conclude(step.work()))
    assert isinstance(step, login.Challenge)
    step = authentication.resume(client.final(step.data))
    if not with_outcome and isinstance(step, login.Challenge):
        assert step.data == client.server_final
        step = authentication.resume(b"")
    return step


@pytest.mark.parametrize("first", [True, False])
def test_scram_proves_both_sides(rules: Rules, users: Users, passwords: Passwords, first: bool) -> None:
    """This holds for passwords of the configuration and for those set later."""
    declaring.add_user(users, "u", passwords.make("p"))
    for name, password in (("guest", "guest"), ("u", "p")):
        client = ScramClient(name, password)
        step = scram(rules(), client, first=first)
        assert step == login.Success(name, client.server_final)


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("guest", "wrong", "user 'guest': invalid credentials"),
        ("unknown", "guest", f"{login.UNKNOWN_USER}: invalid credentials"),
        ("nobody", "-", "user 'nobody': invalid credentials"),
        ("rabbit", "hole", f"user 'rabbit': invalid credentials{NEVER_KNOWN}"),
    ],
)
def test_scram_refuses_after_the_proof(rules: Rules, user: str, password: str, reason: str) -> None:
    """Up to the proof, a client cannot distinguish an unknown user from a wrong password."""
    step = scram(rules(), ScramClient(user, password))
    assert isinstance(step, login.Failure)
    assert step.reason == reason


def test_scram_nonces_are_not_used_twice(rules: Rules) -> None:
    """Otherwise a recorded proof could be replayed."""
    challenges = set()
    for _ in range(3):
        authentication = rules().begin(HERE)
        step = authentication.start("SCRAM-SHA-256", b"n,,n=guest,r=same")
        assert isinstance(step, login.Slow)
        step = authentication.resume(step.conclude(step.work()))
        assert isinstance(step, login.Challenge)
        challenges.add(step.data)
    assert len(challenges) == 3


def test_a_made_up_verifier_opens_nothing_even_if_met(
    rules: Rules, passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login fails because there is no such user, not because the proof is hard."""
    known, _ = passwords.scram_record("guest")()
    monkeypatch.setattr(passwords, "scram_record", lambda name: lambda: (known, False))
    assert isinstance(scram(rules(), ScramClient("stranger", "guest")), login.Failure)


def test_scram_refuses_a_password_that_was_changed_meanwhile(
    rules: Rules, users: Users, passwords: Passwords
) -> None:
    """Between challenge and proof an administrator may have changed it."""
    client = ScramClient("guest", "guest")
    authentication = rules().begin(HERE)
    step = authentication.start("SCRAM-SHA-256", client.first())
    assert isinstance(step, login.Slow)
    step = authentication.resume(step.conclude(step.work()))
    assert isinstance(step, login.Challenge)
    declaring.set_password(users, "guest", passwords.make("new"))
    step = authentication.resume(client.final(step.data))
    assert step == login.Failure("user 'guest': the password was changed meanwhile", "guest")


class Line:
    """Turns whose work is a sentence, and which of them were refused."""

    def __init__(self) -> None:
        self.turns: login.LoginQueue[str] = login.LoginQueue()
        self.refused: list[str] = []
        self._keys = 0

    def join(self, address: str, name: str, *, key: object = None) -> login.Turn[str]:
        """Wait for a turn, with a password of its own unless a key is given."""
        self._keys += 1
        key = self._keys if key is None else key
        work = f"{name} from {address}"
        turn, refused = self.turns.join(work, address=address, name=name, key=key)
        if refused is not None:
            assert refused.refused
            self.refused.append(refused.work)
        return turn

    def take(self) -> str:
        turn = self.turns.take()
        assert turn is not None
        self.turns.done(turn)
        return turn.work

    def take_all(self) -> list[str]:
        return [self.take() for _ in range(len(self.turns))]


@pytest.fixture
def line() -> Line:
    return Line()


def test_an_address_has_one_verification_at_a_time(line: Line) -> None:
    """An address with many logins leaves a processor to others, whichever order the turns take."""
    for number in range(10):
        line.join("storm", f"guess{number}")
    running = line.turns.take()
    assert running is not None
    assert [line.turns.take(), line.turns.take()] == [None, None]
    line.join("home", "guess3")
    assert line.take() == "guess3 from home"
    assert line.turns.take() is None
    line.turns.leave(running)  # the client is gone, and its password is still being verified
    assert line.turns.take() is None
    line.turns.done(running)
    assert line.turns.take() is not None


@pytest.mark.parametrize(
    ("addresses", "names"),
    [(1, 1), (1, 200), (1000, 1)],
    ids=["one address and name", "many names of one address", "one name of many addresses"],
)
def test_a_storm_delays_another_login_by_three_turns_at_most(line: Line, addresses: int, names: int) -> None:
    """Turns alternate between the addresses and the names."""
    for number in range(1000):
        line.join(f"storm{number % addresses}", f"guess{number % names}")
    for _ in range(20):
        line.join("home", "ann")
        assert "ann from home" in [line.take() for _ in range(4)]


def test_those_that_say_the_same_share_one_turn(line: Line) -> None:
    """Clients with one password cost one verification; another password has its own turn."""
    fleet = [line.join("here", "app", key="right") for _ in range(500)]
    other = line.join("here", "app", key="wrong")
    assert len(set(fleet)) == 1
    assert fleet[0].waiting == 500
    assert line.turns.take() is fleet[0]
    line.turns.done(fleet[0])
    assert line.turns.take() is other


def test_who_leaves_gives_up_the_turn(line: Line) -> None:
    """The last waiter gives it up, not the first; a running turn gives up none of others."""
    turn = line.join("a", "u", key="same")
    line.join("a", "u", key="same")
    line.turns.leave(turn)
    assert len(line.turns) == 1
    line.turns.leave(turn)
    assert len(line.turns) == 0
    assert line.turns.take() is None
    assert line.join("a", "u", key="same") is not turn


def test_too_many_of_an_address_are_refused(line: Line) -> None:
    """The newest login of that address is refused, whatever other addresses have."""
    for number in range(login.WAITING_PER_ADDRESS_MAX + 10):
        line.join("storm", "guest")
        line.join("home", f"u{number % 100}")
    assert line.turns.waiting("storm") == line.turns.waiting("home") == login.WAITING_PER_ADDRESS_MAX
    assert line.refused.count("guest from storm") == 10
    assert len(line.refused) == 20


def test_who_has_most_of_a_full_address_is_refused(line: Line) -> None:
    """On one machine, the many logins as guest make room for others."""
    for _ in range(login.WAITING_PER_ADDRESS_MAX):
        line.join("here", "guest")
    turn = line.join("here", "ann")
    assert not turn.refused
    assert line.refused == ["guest from here"]


def test_too_many_in_all_are_refused_to_the_address_that_has_most(line: Line) -> None:
    """An address with a single login has a place even when everything is full."""
    addresses = login.WAITING_MAX // 100 + 1
    for number in range(100 * addresses):
        line.join(f"bot{number % addresses}", f"guess{number}")
    assert len(line.turns) == login.WAITING_MAX
    turn = line.join("home", "ann")
    assert not turn.refused
    assert len(line.turns) == login.WAITING_MAX


def test_nothing_is_left_of_who_was_served(line: Line) -> None:
    for number in range(3000):
        line.join(f"a{number % 70}", f"u{number % 110}")
    turns = line.turns
    line.take_all()
    assert len(turns) == 0
    assert not any((turns._by_address, turns._by_name, turns._known, turns._in_place))


@pytest.fixture
def access(users: Users) -> Access:
    declaring.set_permission(users, "guest", "/", Permission("^c-", "^(w-|amq\\.default$)", "^r-"))
    return Access(CatalogGrants(users, "guest"), "/")


def refused(ask: Callable[[], None]) -> str:
    with pytest.raises(PermissionDenied) as caught:
        ask()
    return caught.value.description


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_each_permission_is_for_its_operation(access: Access, kind: authorise.Kind) -> None:
    access.configure(kind, "c-1")
    access.write(kind, "w-1")
    access.read(kind, "r-1")
    for operation, name in (("configure", "w-1"), ("write", "r-1"), ("read", "c-1")):
        assert refused(lambda: getattr(access, operation)(kind, name)) == (  # noqa: B023
            f"{operation} access to {kind} '{name}' in vhost '/' refused for user 'guest'"
        )


@pytest.mark.parametrize("pattern", ["", "^$"])
def test_an_empty_pattern_allows_nothing(users: Users, pattern: str) -> None:
    """As a search pattern, the empty pattern would match every name."""
    declaring.set_permission(users, "guest", "/", Permission(pattern, pattern, pattern))
    access = Access(CatalogGrants(users, "guest"), "/")
    for kind, name in (("queue", "q"), ("exchange", "")):
        assert not access.allows("read", kind, name)  # type: ignore[arg-type]


def test_decisions_are_remembered_until_permissions_change(access: Access, users: Users) -> None:
    """Refusals and allowances are both remembered, and both are forgotten."""
    access.read("queue", "r-1")
    assert refused(lambda: access.read("queue", "q"))
    before = access.changes.version
    declaring.set_permission(users, "guest", "/", Permission(read="^q$"))
    assert access.changes.version != before
    access.read("queue", "q")
    assert refused(lambda: access.read("queue", "r-1"))


def test_entering_a_virtual_host_needs_a_permission_there(users: Users, access: Access) -> None:
    """The reply is 530 with RabbitMQ's text; a permission that allows nothing is enough."""
    access.enter()
    declaring.set_permission(users, "rabbit", "/", Permission("", "", ""))
    check_vhost_access(CatalogGrants(users, "rabbit"), "/")
    for user, vhost in (("guest", "v"), ("nobody", "/"), ("unknown", "/")):
        with pytest.raises(NotAllowed) as caught:
            check_vhost_access(CatalogGrants(users, user), vhost)
        assert caught.value.description == f"access to vhost '{vhost}' refused for user '{user}'"
    declaring.clear_permission(users, "guest", "/")
    with pytest.raises(NotAllowed):
        access.enter()


def test_without_topic_permission_every_key_is_allowed(access: Access, users: Users) -> None:
    """A topic permission at another exchange, or of another user, changes nothing."""
    declaring.set_topic_permission(users, "guest", "/", "other", TopicPermission("", ""))
    declaring.set_topic_permission(users, "rabbit", "/", "amq.topic", TopicPermission("", ""))
    access.write_topic("amq.topic", "any.key")
    access.read_topic("amq.topic", "any.key")


@pytest.mark.rabbitmq("topic_permission_SUITE", "topic_permission_checks")
def test_topic_permissions_are_patterns_on_keys(access: Access, users: Users) -> None:
    declaring.set_topic_permission(users, "guest", "/", "amq.topic", TopicPermission("^w\\.", "^r\\."))
    access.write_topic("amq.topic", "w.1")
    access.read_topic("amq.topic", "r.1")
    assert refused(lambda: access.write_topic("amq.topic", "r.1")) == (
        "write access to topic 'r.1' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
    )
    assert refused(lambda: access.read_topic("amq.topic", "w.1")) == (
        "read access to topic 'w.1' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
    )


@pytest.mark.rabbitmq("topic_permission_SUITE", "topic_permission_checks")
def test_topic_patterns_may_name_user_and_virtual_host(access: Access, users: Users) -> None:
    """Each user gets a part of the topic tree with one pattern for all."""
    declaring.set_topic_permission(
        users, "guest", "/", "amq.topic", TopicPermission("^{vhost}\\.{username}\\.")
    )
    access.write_topic("amq.topic", "/.guest.x")
    assert refused(lambda: access.write_topic("amq.topic", "/.rabbit.x"))


def test_a_users_name_is_no_pattern(users: Users) -> None:
    """Otherwise a user named .* would have the whole tree."""
    declaring.add_user(users, ".*", None)
    declaring.set_topic_permission(users, ".*", "/", "amq.topic", TopicPermission("^{username}\\."))
    access = Access(CatalogGrants(users, ".*"), "/")
    access.write_topic("amq.topic", ".*.x")
    assert refused(lambda: access.write_topic("amq.topic", "rabbit.x"))


def test_only_the_tag_makes_an_impersonator(access: Access, users: Users) -> None:
    assert not access.impersonator
    declaring.set_tags(users, "guest", ["impersonator"])
    assert access.impersonator
    declaring.delete_user(users, "guest")
    assert not access.impersonator
