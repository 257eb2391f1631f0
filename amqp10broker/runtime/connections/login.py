"""Logins: slow work runs in threads, in a fair order, so that other clients do not wait for it."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from amqp10broker.auth.login import (
    Authentication,
    Authenticator,
    Challenge,
    Failure,
    Fetch,
    LoginQueue,
    Slow,
    Step,
    Success,
    Tried,
    Turn,
    Unverified,
)
from amqp10broker.auth.passwords import Passwords
from amqp10broker.config import Config
from amqp10broker.metadata.users import Users
from amqp10broker.protocols.amqp091.codec import decode_table
from amqp10broker.protocols.amqp091.errors import DecodeError
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.login")

VERIFICATIONS_MAX: Final = 2
"""The number of passwords verified at one time: each takes 19 MiB and a processor."""

HELD_MAX: Final = 200
"""The number of clients of one address that wait after a failed login at one time: as many per second with
the default delay.
"""

FAULT_TOLD_S: Final = 60.0
"""The interval of log entries about internal errors in logins, which any client can cause."""

_CROWDED: Final = Unverified("too many logins from your address wait for their verification; try again later")
_FAULTY: Final = Unverified("the login was not verified by a fault in the broker: see its log; try again")

_threads = trio.CapacityLimiter(VERIFICATIONS_MAX)


async def run_slow(work: Callable[[], Any]) -> Any:
    return await trio.to_thread.run_sync(work, limiter=_threads)


class _Verification:
    """A verification with the clients that wait for it, and its result."""

    __slots__ = ("fault", "over", "result", "slow")

    def __init__(self, slow: Slow) -> None:
        self.slow = slow
        self.over = trio.Event()
        self.result: Any = None
        self.fault: Exception | None = None

    async def do(self) -> None:
        try:
            self.result = self.slow.shortcut()
            if self.result is None:
                self.result = self.slow.conclude(await run_slow(self.slow.work))
        except Exception as error:
            self.fault = error
        self.over.set()


class Logins:
    """The logins of one broker. `run` is a separate task that serves the queue."""

    def __init__(self) -> None:
        self.attempts: dict[str, Tried] = {}
        self._turns: LoginQueue[_Verification] = LoginQueue()
        self._more = trio.Event()
        self._held: Counter[str] = Counter()
        # Addresses for which the log already has an entry that they are refused.
        self._turned_away: set[str] = set()
        # Address -> the number of refusals since the last log entry about it.
        self._refused: dict[str, int] = {}
        self._fault_due = float("-inf")

    async def settle(
        self, authentication: Authentication, step: Step, address: str, protocol: str | None = None
    ) -> Success | Failure | Challenge | Unverified:
        """Carry out a step, until the client's next input is needed. `protocol`: that of a login which counts
        as an attempt when it is decided.
        """
        try:
            while isinstance(step, Slow | Fetch):
                if isinstance(step, Fetch):
                    await step.fetch()
                    step = authentication.resume(None)
                    continue
                turn = await self._wait(step, address)
                if turn.refused:
                    return _CROWDED
                if turn.work.fault is not None:
                    raise turn.work.fault
                step = authentication.resume(turn.work.result)
        except Exception as error:
            self._tell_fault(error)
            return _FAULTY
        if protocol is not None and isinstance(step, Success | Failure):
            before, succeeded = self.attempts.get(protocol, Tried()), isinstance(step, Success)
            self.attempts[protocol] = Tried(before.succeeded + succeeded, before.failed + (not succeeded))
        return step

    async def hold(self, address: str, delay_s: float) -> None:
        """Delay the answer to a failed login, to slow down password guessing."""
        self._held[address] += 1
        try:
            await trio.sleep(delay_s)
        finally:
            self._held[address] -= 1
            if not self._held[address]:
                del self._held[address]
                self._turned_away.discard(address)

    def turns_away(self, address: str) -> bool:
        """Return whether an address has had too many failed logins recently to accept more. A handshake takes
        more time of the broker than of the client, and a storm of them would delay all other clients.
        """
        if self._held[address] < HELD_MAX:
            return False
        if address not in self._turned_away:
            self._turned_away.add(address)
            _log.warning("connections are closed: too many failed logins", address=address)
        return True

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(VERIFICATIONS_MAX):
                nursery.start_soon(self._verify)

    async def _wait(self, slow: Slow, address: str) -> Turn[_Verification]:
        turn, refused = self._turns.join(_Verification(slow), address=address, name=slow.name, key=slow.key)
        if refused is not None:
            self._tell_refused(refused)
        self._more.set()
        try:
            await turn.work.over.wait()
        finally:
            self._turns.leave(turn)
            if address in self._refused and not self._turns.waiting(address):
                count = self._refused.pop(address)
                _log.info("logins are verified again", address=address, refused=count)
        return turn

    def _tell_refused(self, turn: Turn[_Verification]) -> None:
        if turn.address not in self._refused:
            # Logged once until no client of the address waits: a storm must not flood the log.
            _log.warning("logins are refused unverified: too many wait", address=turn.address)
        self._refused[turn.address] = self._refused.get(turn.address, 0) + turn.waiting
        turn.work.over.set()

    def _tell_fault(self, fault: Exception) -> None:
        if trio.current_time() >= self._fault_due:
            self._fault_due = trio.current_time() + FAULT_TOLD_S
            _log.error("a login was not verified by a fault in the broker", exc_info=fault)

    async def _verify(self) -> None:
        while True:
            turn = self._turns.take()
            if turn is None:
                if self._more.is_set():
                    self._more = trio.Event()
                await self._more.wait()
                continue
            await trio.lowlevel.checkpoint()
            await turn.work.do()
            self._turns.done(turn)


def authenticator(
    config: Config, users: Users, passwords: Passwords, now_s: Callable[[], float]
) -> Authenticator:
    """Return the configured rules of login. `now_s`: the time of day, in seconds, for each token. Raises
    `ConfigError` if a key of tokens cannot be read.
    """
    backends = config.auth_backends.split(",")
    tokens = None
    if "oauth2" in backends:
        from amqp10broker.runtime.connections.key_sets import LivingTokens

        tokens = LivingTokens(config, now_s)
    return Authenticator(
        users,
        passwords,
        token=secrets.token_bytes,
        read_table=read_field_table,
        anonymous_user=config.anonymous_login_user,
        loopback_users=frozenset(config.loopback_users),
        plain_needs_tls=config.plain_needs_tls,
        tokens=tokens,
        backends=backends,
    )


def read_field_table(data: bytes) -> Mapping[str, object] | None:
    """Return the pairs of a field table without its length, as AMQPLAIN sends it; None if it is malformed."""
    try:
        table, end = decode_table(len(data).to_bytes(4, "big") + data, 0)
    except DecodeError:
        return None
    return table if end == len(data) + 4 else None
