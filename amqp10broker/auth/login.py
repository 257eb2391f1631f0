"""SASL on the server's side: one `Authentication` per connection determines the client's user; and the order
of password verifications, when more clients log in than can be verified.

Nothing here waits. Slow work (argon2, SCRAM's derivation) is returned as `Slow`: the caller runs it in a
thread and passes its result to `resume`. Keys to be fetched are returned as `Fetch`, data for the client
as `Challenge`::

    step = authenticator.begin(peer).start(mechanism, initial_response)
    while not isinstance(step, Success | Failure):
        if isinstance(step, Slow):
            step = authentication.resume(step.conclude(await in_a_thread(step.work)))
        elif isinstance(step, Fetch):
            await step.fetch()
            step = authentication.resume(None)
        else:
            step = authentication.resume(await ask_the_client(step.data))

Mechanisms: PLAIN (RFC 4616), AMQPLAIN (AMQP 0-9-1: a field table with LOGIN and PASSWORD), ANONYMOUS (RFC
4505), EXTERNAL (RFC 4422, appendix A) and SCRAM-SHA-256 (RFC 7677).
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from amqp10broker.auth.passwords import Passwords, ScramError, ScramServer, Token
from amqp10broker.auth.tokens import TokenGrants, TokenRefused, UnknownKey, looks_like_token
from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.users import Users

_NONCE_BYTES: Final = 18

UNKNOWN_USER: Final = "unknown user (the name is not shown, it may be a password)"
"""The text that is logged instead of a name that no user has."""


class Mechanism(Enum):
    PLAIN = "PLAIN"
    AMQPLAIN = "AMQPLAIN"
    ANONYMOUS = "ANONYMOUS"
    EXTERNAL = "EXTERNAL"
    SCRAM_SHA_256 = "SCRAM-SHA-256"


READABLE: Final = frozenset({Mechanism.PLAIN, Mechanism.AMQPLAIN})
"""Mechanisms that send the password itself over the wire."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The connection of a client before its login. `certificate_user`: the user that its verified certificate
    names; None without one.
    """

    loopback: bool
    address: str = ""
    tls: bool = False
    certificate_user: str | None = None
    local: str = ""
    transport: str = "tcp"


@dataclass(frozen=True, slots=True)
class Success:
    """The client has logged in as this user. `data`: the mechanism's last message, for a protocol that can
    send one with the outcome. `token`: the rights by the token that was its password; None: those of the
    catalog.
    """

    user: str
    data: bytes = b""
    token: TokenGrants | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The login is refused.

    Attributes:
        reason: for the log, never for the client. It does not contain an unknown name, which may be a
            password typed in the place of the name.
        user: the claimed name, for the log; empty if the user does not exist.
    """

    reason: str
    user: str = ""


@dataclass(frozen=True, slots=True)
class Challenge:
    """Data for the client; pass its answer to `Authentication.resume`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Slow:
    """Work of some milliseconds: run it in a thread, and pass the conclusion to `Authentication.resume`.
    `shortcut`: returns the conclusion if it is known by now without the work; else None.
    """

    work: Callable[[], Any] = field(repr=False)
    conclude: Callable[[Any], Any] = field(repr=False)
    name: str
    key: Hashable = field(repr=False)
    shortcut: Callable[[], Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Keys must be fetched from the tokens' authority: await it, then call `Authentication.resume`.

    It does not occupy a turn of the password verifications: a server may need seconds to answer.
    """

    fetch: Callable[[], Awaitable[None]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unverified:
    """The client's password was not verified: too many verifications of its address wait, or the broker has a
    fault. It may try again.
    """

    reason: str


Step: TypeAlias = Success | Failure | Challenge | Slow | Fetch
_Steps: TypeAlias = Generator[Challenge | Slow | Fetch, Any, Success | Failure]


class Tokens(Protocol):
    """A verifier of tokens: `runtime.connections.key_sets.RefreshingTokens`."""

    def verify(self, token: bytes) -> TokenGrants:
        """Return the rights of a token now. Raises `UnknownKey` if no key of its id is known, and
        `TokenRefused` if the token is not accepted.
        """

    def may_fetch(self) -> bool:
        """Return whether keys may be fetched from the authority now."""

    async def fetch(self) -> None:
        """Fetch the keys, or wait for the fetch that another login has begun."""


@dataclass(eq=False)
class Authenticator:
    """The rules of logging in, for all connections of a broker."""

    users: Users
    passwords: Passwords
    token: Token
    read_table: Callable[[bytes], Mapping[str, object] | None]
    mechanisms: Sequence[Mechanism] = tuple(Mechanism)
    anonymous_user: str = ""
    loopback_users: frozenset[str] = frozenset()
    plain_needs_tls: bool = False
    tokens: Tokens | None = None
    backends: Sequence[str] = ("internal",)

    def offered(self, peer: Peer) -> tuple[Mechanism, ...]:
        """Return the mechanisms that this client may choose, in order."""
        return tuple(each for each in self.mechanisms if self._fits(each, peer))

    def begin(self, peer: Peer, *, data_with_outcome: bool = True) -> Authentication:
        """Begin the login of one client.

        Args:
            data_with_outcome: the protocol can send a mechanism's last message together with success. AMQP
                1.0 can; for AMQP 0-9-1 it becomes one more challenge.
        """
        return Authentication(self, peer, data_with_outcome=data_with_outcome)

    def why_not(self, mechanism: str, peer: Peer) -> str | None:
        """Return why a client may not choose a mechanism, for the log; None if it may."""
        known = next((each for each in self.mechanisms if each.value == mechanism), None)
        if known is None:
            return f"mechanism '{mechanism}' is not offered"
        if known in READABLE and self.plain_needs_tls and not peer.tls:
            return f"mechanism '{mechanism}' needs TLS here; use SCRAM-SHA-256, or connect with TLS"
        if not self._fits(known, peer):
            return f"mechanism '{mechanism}' is not offered to this client"
        return None

    def _fits(self, mechanism: Mechanism, peer: Peer) -> bool:
        if mechanism in READABLE:
            return peer.tls or not self.plain_needs_tls
        if mechanism is Mechanism.ANONYMOUS:
            return bool(self.anonymous_user)
        if mechanism is Mechanism.EXTERNAL:
            return peer.certificate_user is not None
        return True


class Authentication:
    """The login of one client. It accepts no call after `Success` or `Failure`."""

    def __init__(self, rules: Authenticator, peer: Peer, *, data_with_outcome: bool) -> None:
        self._rules = rules
        self._peer = peer
        self._data_with_outcome = data_with_outcome
        self._steps: _Steps | None = None
        self.mechanism = ""

    def start(self, mechanism: str, response: bytes | None) -> Step:
        """Start the chosen mechanism with the initial response, None without one."""
        assert self._steps is None, "already started"
        self.mechanism = mechanism
        problem = self._rules.why_not(mechanism, self._peer)
        if problem is not None:
            return Failure(problem)
        begin = {
            Mechanism.PLAIN: self._plain,
            Mechanism.AMQPLAIN: self._amqplain,
            Mechanism.ANONYMOUS: self._anonymous,
            Mechanism.EXTERNAL: self._external,
            Mechanism.SCRAM_SHA_256: self._scram,
        }[Mechanism(mechanism)]
        self._steps = begin(response)
        return self.resume(None)

    def resume(self, value: Any) -> Step:
        """Process the answer to a `Challenge`, the conclusion of a `Slow`, or None after a `Fetch`."""
        assert self._steps is not None, "not started"
        try:
            return self._steps.send(value)
        except StopIteration as end:
            outcome: Success | Failure = end.value
        user = outcome.user
        if isinstance(outcome, Success) and user in self._rules.loopback_users and not self._peer.loopback:
            return Failure(f"user '{user}' can only connect from this machine", user)
        return outcome

    # --- mechanisms -------------------------------------------------------------------------------

    def _plain(self, response: bytes | None) -> _Steps:
        if response is None:
            response = yield Challenge(b"")
        parts = response.split(b"\0")
        if len(parts) != 3:
            return Failure("PLAIN response is not authzid NUL authcid NUL password")
        # The authzid is ignored, as in RabbitMQ: no user may act as another one.
        return (yield from self._password(parts[1], parts[2]))

    def _amqplain(self, response: bytes | None) -> _Steps:
        if response is None:
            response = yield Challenge(b"")
        table = self._rules.read_table(response)
        if table is None:
            return Failure("AMQPLAIN response is not a field table")
        name, password = (_as_bytes(table.get(key)) for key in ("LOGIN", "PASSWORD"))
        if name is None or password is None:
            return Failure("AMQPLAIN response has no LOGIN or no PASSWORD that is a string")
        return (yield from self._password(name, password))

    def _password(self, encoded_name: bytes, password: bytes) -> _Steps:
        outcome: Success | Failure = Failure("there is no backend")
        for backend in self._rules.backends:
            if backend == "oauth2":
                outcome = yield from self._token(password)
            else:
                outcome = yield from self._internal(encoded_name, password)
            if isinstance(outcome, Success):
                break
        return outcome

    def _token(self, token: bytes) -> _Steps:
        tokens = self._rules.tokens
        assert tokens is not None, "a backend without what it needs"
        if not looks_like_token(token):
            return Failure("the password is no token")
        try:
            try:
                grants = tokens.verify(token)
            except UnknownKey:
                if not tokens.may_fetch():
                    raise
                yield Fetch(tokens.fetch)
                grants = tokens.verify(token)
        except TokenRefused as refusal:
            return Failure(f"token refused: {refusal}")
        return Success(grants.user, token=grants)

    def _internal(self, encoded_name: bytes, password: bytes) -> _Steps:
        try:
            name = encoded_name.decode()
        except UnicodeDecodeError:
            return Failure("user name is not UTF-8")
        passwords = self._rules.passwords
        if passwords.quick(name, password):
            return Success(name)
        record = passwords.record(name)
        right = yield Slow(
            passwords.slow(name, password),
            lambda right: right and passwords.remember(name, password, record),
            name,
            (passwords.digest(name, password), record),
            # Another login of this user may have verified the password while this one waited.
            lambda: passwords.quick(name, password) or None,
        )
        if right:
            return Success(name)
        if not password:
            return self._refused(name, "blank passwords are not accepted")
        return self._refused(name, "invalid credentials")

    def _refused(self, name: str, why: str) -> Failure:
        if name in self._rules.users:
            return Failure(f"user '{name}': {why}", name)
        return Failure(f"{UNKNOWN_USER}: {why}")

    def _anonymous(self, response: bytes | None) -> _Steps:
        # The client's response is "trace information" (RFC 4505) without effect.
        yield from ()
        name = self._rules.anonymous_user
        if name not in self._rules.users:
            return Failure(f"user '{name}', as whom ANONYMOUS logs in, does not exist", name)
        return Success(name)

    def _external(self, response: bytes | None) -> _Steps:
        yield from ()
        name = self._peer.certificate_user
        assert name is not None, "EXTERNAL is not offered without a certificate"
        if response and response != name.encode():
            return Failure(f"user '{name}' of the certificate wants to act as another user", name)
        if name not in self._rules.users:
            return Failure(f"user '{name}' of the certificate does not exist", name)
        return Success(name)

    def _scram(self, response: bytes | None) -> _Steps:
        if not response:
            response = yield Challenge(b"")
        nonce = base64.b64encode(self._rules.token(_NONCE_BYTES)).decode()
        server = ScramServer(nonce)
        try:
            server.read_first(response)
        except ScramError as error:
            return Failure(str(error))
        name = server.user
        if server.authzid not in ("", name):
            return self._refused(name, "wants to act as another user")
        record = self._rules.passwords.record(name)
        verifier, real = yield Slow(
            self._rules.passwords.scram_record(name),
            lambda found: found,
            name,
            ("SCRAM", name, record),
            lambda: None,
        )
        answer = yield Challenge(server.challenge(verifier))
        try:
            final = server.read_final(answer)
        except ScramError as error:
            why = str(error)
            if not real and record is not None:
                why += "; the password was never known in plain here, set it anew to use SCRAM"
            return self._refused(name, why)
        if not real or self._rules.passwords.record(name) is not record:
            return self._refused(name, "the password was changed meanwhile")
        if self._data_with_outcome:
            return Success(name, final)
        # The client answers with an empty response after checking the server's signature.
        if (yield Challenge(final)):
            return self._refused(name, "the last response must be empty")
        return Success(name)


def _as_bytes(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else None


class LoginAttempts(NamedTuple):
    """The number of login attempts of one protocol. An attempt without a verified password counts as neither.
    Over HTTP each request is one.
    """

    succeeded: int = 0
    failed: int = 0


Work = TypeVar("Work")

WAITING_PER_ADDRESS_MAX: Final = 256
"""The verifications that may wait for one address: five seconds of them, half of the time of a handshake."""

WAITING_MAX: Final = 4096
"""The limit of waiting verifications in all."""


class Turn(Generic[Work]):
    """One verification with the clients that wait for it."""

    __slots__ = ("_key", "address", "name", "refused", "waiting", "work")

    def __init__(self, work: Work, address: str, name: str, key: Hashable) -> None:
        self.work = work
        self.address = address
        self.name = name
        self.waiting = 1
        self.refused = False
        self._key = key


_Lanes = OrderedDict[str, OrderedDict[str, dict[Turn[Work], None]]]


class LoginQueue(Generic[Work]):
    """The queue of waiting verifications.

    A verification takes some twenty milliseconds on purpose, so many wrong passwords build a queue. It must
    not delay other clients. Turns rotate over the client addresses and, every other time, over the claimed
    user names; within an address over its names, within a name over its addresses. A storm from one address,
    under any names, and a storm on one name, from any addresses, each take at most every other turn from
    unrelated clients. An address has one verification at a time, so that a storm leaves a processor to
    others.

    Clients with equal credentials (a restarting fleet, a program that retries an old password) share one
    verification. The number of waiting ones is limited for an address and in all. The excess is taken from
    the address or name with most waiting, and refused at once, without a verification. None of this depends
    on whether a user exists.
    """

    def __init__(self) -> None:
        self._by_address: _Lanes[Work] = OrderedDict()
        self._by_name: _Lanes[Work] = OrderedDict()
        self._known: dict[Hashable, Turn[Work]] = {}
        self._in_place: dict[str, int] = {}
        self._running: set[str] = set()
        self._count = 0
        self._names_turn = False

    def __len__(self) -> int:
        return self._count

    def waiting(self, address: str) -> int:
        return self._in_place.get(address, 0)

    def join(
        self, work: Work, *, address: str, name: str, key: Hashable
    ) -> tuple[Turn[Work], Turn[Work] | None]:
        """Wait for a verification. `key`: equal for verifications with the same result; only clients of one
        address share. Returns the turn, and the one that lost its place for it, which may be the same one.
        The caller notifies the clients of the latter.
        """
        key = (address, key)
        turn = self._known.get(key)
        if turn is not None:
            turn.waiting += 1
            return turn, None
        turn = Turn(work, address, name, key)
        self._known[key] = turn
        _put(self._by_address, address, name, turn)
        _put(self._by_name, name, address, turn)
        self._in_place[address] = self.waiting(address) + 1
        self._count += 1
        if self._in_place[address] > WAITING_PER_ADDRESS_MAX:
            return turn, self._refuse_of(address)
        if self._count > WAITING_MAX:
            return turn, self._refuse_of(max(self._in_place, key=self._in_place.__getitem__))
        return turn, None

    def leave(self, turn: Turn[Work]) -> None:
        """Stop waiting; the turn is dropped with its last client."""
        turn.waiting -= 1
        if not turn.waiting:
            self._take_out(turn)
            self._forget(turn)

    def take(self) -> Turn[Work] | None:
        """Return the verification to run next; None if there is none, or if all are of addresses with a
        running one.

        Clients may still join it until it is `done`, and the address gets no other before that.
        """
        lanes = self._by_name if self._names_turn else self._by_address
        turn = self._next(lanes, by_name=self._names_turn)
        if turn is not None:
            self._names_turn = not self._names_turn
            self._take_out(turn)
            self._running.add(turn.address)
        return turn

    def done(self, turn: Turn[Work]) -> None:
        self._running.discard(turn.address)
        self._forget(turn)

    def _next(self, lanes: _Lanes[Work], *, by_name: bool) -> Turn[Work] | None:
        for outer, inners in lanes.items():
            for inner, lane in inners.items():
                if (inner if by_name else outer) not in self._running:
                    lanes.move_to_end(outer)
                    inners.move_to_end(inner)
                    return next(iter(lane))
                if not by_name:
                    break
        return None

    def _forget(self, turn: Turn[Work]) -> None:
        if self._known.get(turn._key) is turn:
            del self._known[turn._key]

    def _refuse_of(self, address: str) -> Turn[Work]:
        lanes = self._by_address[address]
        most = max(lanes, key=lambda name: len(lanes[name]))
        turn = next(reversed(lanes[most]))
        turn.refused = True
        self._take_out(turn)
        self._forget(turn)
        return turn

    def _take_out(self, turn: Turn[Work]) -> None:
        if not _remove(self._by_address, turn.address, turn.name, turn):
            return
        _remove(self._by_name, turn.name, turn.address, turn)
        self._count -= 1
        self._in_place[turn.address] -= 1
        if not self._in_place[turn.address]:
            del self._in_place[turn.address]


def _put(lanes: _Lanes[Work], outer: str, inner: str, turn: Turn[Work]) -> None:
    lanes.setdefault(outer, OrderedDict()).setdefault(inner, {})[turn] = None


def _remove(lanes: _Lanes[Work], outer: str, inner: str, turn: Turn[Work]) -> bool:
    if outer not in lanes or turn not in lanes[outer].get(inner, ()):
        return False
    lane = lanes[outer][inner]
    del lane[turn]
    if not lane:
        del lanes[outer][inner]
        if not lanes[outer]:
            del lanes[outer]
    return True
