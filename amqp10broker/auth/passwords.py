"""Password records: making them, and verifying a password against one.

New passwords are stored as argon2id. One verification takes some twenty milliseconds on purpose, so it is
split: `Passwords.quick` decides at once when it can, and `Passwords.slow` does the rest in a thread. A
correct login is remembered under a key of this process, so that the next one costs microseconds.

A wrong password always takes the slow way, whatever the record's algorithm and whether the user exists:
the time does not reveal user names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from argon2 import PasswordHasher, exceptions

from amqp10broker.auth.scram import ITERATIONS, SALT_BYTES, ScramError, derive
from amqp10broker.errors import InvalidArgument
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, ScramRecord, Users

# OWASP's second choice for argon2id: 19 MiB, two passes, parallelism 1; 19 ms on a machine of 2020.
MEMORY_KIB: Final = 19_456
PASSES: Final = 2
LANES: Final = 1
_ARGON2_SALT_BYTES: Final = 16
_RABBIT_SALT_BYTES: Final = 4
_DIGESTS: Final = {
    PasswordAlgorithm.RABBIT_SHA256: "sha256",
    PasswordAlgorithm.RABBIT_SHA512: "sha512",
    PasswordAlgorithm.RABBIT_MD5: "md5",
}

Token = Callable[[int], bytes]
"""Returns the given number of unguessable bytes: `secrets.token_bytes`."""


class Passwords:
    """Makes and verifies password records for one broker process."""

    def __init__(self, users: Users, token: Token, export: str = "none") -> None:
        self._export = export
        self._users = users
        self._token = token
        self._key = token(32)
        # Name -> (the record that the password was right for, keyed digest of name and password).
        self._known: dict[str, tuple[PasswordRecord, bytes]] = {}
        self._known_version = users.version
        self._decoy: PasswordRecord | None = None

    # --- making -----------------------------------------------------------------------------------

    def make(self, password: str) -> PasswordRecord:
        """Make the record of a new password. Takes some thirty milliseconds: call it in a thread. Raises
        `InvalidArgument` if the password is empty or contains a NUL.
        """
        check_password(password)
        value = _hasher().hash(password, salt=self._token(_ARGON2_SALT_BYTES))
        record = PasswordRecord(PasswordAlgorithm.ARGON2ID, value, self._scram_record(password))
        if self._export != "sha256":
            return record
        beside = rabbit_record(password, self._token(_RABBIT_SALT_BYTES))
        return replace(record, rabbit_sha256=beside.value)

    def _scram_record(self, password: str) -> ScramRecord | None:
        try:
            return derive(password, self._token(SALT_BYTES))
        except ScramError:
            # SASLprep forbids some passwords that PLAIN can send; they work with PLAIN then.
            return None

    def exportable(self, record: PasswordRecord | None) -> PasswordRecord | None:
        """Return the record for a definitions file: never in plain, but readable for RabbitMQ."""
        if record is None or record.algorithm is not PasswordAlgorithm.PLAIN:
            return record
        return rabbit_record(record.value, self._token(_RABBIT_SALT_BYTES))

    # --- verifying --------------------------------------------------------------------------------

    def quick(self, name: str, password: bytes) -> bool:
        """Return whether a password is known to be right without slow work. False is not final: call
        `slow`.
        """
        record = self.record(name)
        if record is None or not password:
            return False
        known = self._known.get(name)
        if known is not None:
            if known[0] is record and hmac.compare_digest(known[1], self.digest(name, password)):
                return True
            if known[0] is not record:
                del self._known[name]
        return _verify_fast(record, password)

    def slow(self, name: str, password: bytes) -> Callable[[], bool]:
        """Return a function for a thread that verifies a password; it uses no shared state.

        After True, call `remember`, which checks whether the user has changed meanwhile.
        """
        record = self.record(name)
        decoy = self._decoy_record()

        def verify() -> bool:
            if record is not None and record.algorithm is PasswordAlgorithm.ARGON2ID and password:
                return _verify_argon2(record.value, password)
            # Takes as long as a real one.
            _verify_argon2(decoy.value, password or b"-")
            return record is not None and bool(password) and _verify_fast(record, password)

        return verify

    def remember(self, name: str, password: bytes, record: PasswordRecord | None) -> bool:
        """Remember that a password is right, until the user changes. Returns False if the password was
        changed while it was verified.
        """
        if record is None or record is not self.record(name):
            return False
        if self._known_version != self._users.version:
            self._known = {
                each: known for each, known in self._known.items() if known[0] is self.record(each)
            }
            self._known_version = self._users.version
        if record.algorithm is PasswordAlgorithm.ARGON2ID:
            self._known[name] = record, self.digest(name, password)
        return True

    def scram_record(self, name: str) -> Callable[[], tuple[ScramRecord, bool]]:
        """Return a function for a thread that returns a user's SCRAM verifier, and whether it is a real one.

        For an unknown user, or one without a password ever known in plain, it makes up a verifier that no
        proof meets and that stays the same. All cases take the time of one derivation.
        """
        record = self.record(name)
        salt = hmac.new(self._key, b"scram\0" + name.encode(), hashlib.sha256).digest()[:SALT_BYTES]
        made_up = self.digest(name, b"")

        def find() -> tuple[ScramRecord, bool]:
            plain = record.value if record and record.algorithm is PasswordAlgorithm.PLAIN else None
            try:
                derived = derive("-" if plain is None else plain, salt)
            except ScramError:
                plain, derived = None, derive("-", salt)
            if record is not None and record.scram is not None:
                return record.scram, True
            if plain is not None:
                return derived, True
            return ScramRecord(salt, ITERATIONS, made_up, made_up), False

        return find

    def record(self, name: str) -> PasswordRecord | None:
        user = self._users.find(name)
        return None if user is None else user.password

    def digest(self, name: str, password: bytes) -> bytes:
        """Return a digest of a name and a password, keyed by a secret of this process."""
        # The name's length goes first, so that no other pair gives the same bytes.
        encoded = name.encode()
        return hmac.new(
            self._key, len(encoded).to_bytes(4, "big") + encoded + password, hashlib.sha256
        ).digest()

    def _decoy_record(self) -> PasswordRecord:
        if self._decoy is None:
            # Not a real hash: argon2 has done all its work before it compares.
            salt = _argon2_base64(self._token(_ARGON2_SALT_BYTES))
            digest = _argon2_base64(self._token(32))
            value = f"$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={LANES}${salt}${digest}"
            self._decoy = PasswordRecord(PasswordAlgorithm.ARGON2ID, value)
        return self._decoy


def plain_record(password: str) -> PasswordRecord:
    """Make the record of a password that is in the configuration in plain anyway. Raises `InvalidArgument` if
    it is empty or contains a NUL.
    """
    check_password(password)
    return PasswordRecord(PasswordAlgorithm.PLAIN, password)


def rabbit_record(password: str, salt: bytes) -> PasswordRecord:
    """Make RabbitMQ's record: base64 of a salt of four bytes, and SHA-256 of salt and password."""
    assert len(salt) == _RABBIT_SALT_BYTES, salt
    digest = hashlib.sha256(salt + password.encode()).digest()
    return PasswordRecord(PasswordAlgorithm.RABBIT_SHA256, base64.b64encode(salt + digest).decode())


def check_password(password: str) -> None:
    """Refuse a password that SASL PLAIN could not carry. Raises `InvalidArgument` if it is empty or contains
    a NUL.
    """
    if not password or "\0" in password:
        raise InvalidArgument("password", "the password is empty or holds a NUL; give another")


def _verify_fast(record: PasswordRecord, password: bytes) -> bool:
    if record.algorithm is PasswordAlgorithm.PLAIN:
        return hmac.compare_digest(record.value.encode(), password)
    name = _DIGESTS.get(record.algorithm)
    if name is None:
        return False
    try:
        stored = base64.b64decode(record.value, validate=True)
    except (binascii.Error, ValueError):
        return False
    salt, digest = stored[:_RABBIT_SALT_BYTES], stored[_RABBIT_SALT_BYTES:]
    # RabbitMQ's oldest records are MD5; new ones never are.
    expected = hashlib.new(name, salt + password, usedforsecurity=False).digest()
    return hmac.compare_digest(digest, expected)


def _verify_argon2(value: str, password: bytes) -> bool:
    try:
        return _hasher().verify(value, password)
    except (exceptions.VerificationError, exceptions.InvalidHashError):
        return False


def _hasher() -> PasswordHasher:
    return PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


def _argon2_base64(data: bytes) -> str:
    return base64.b64encode(data).rstrip(b"=").decode()


class ReadyRecords:
    """Gives records that were made before; one for each time that a password occurs, with its own salt."""

    def __init__(self, passwords: Passwords, records: Mapping[str, list[PasswordRecord]]) -> None:
        self._passwords = passwords
        self._records = records

    def make(self, password: str) -> PasswordRecord:
        ready = self._records.get(password)
        return ready.pop() if ready else self._passwords.make(password)

    def exportable(self, record: PasswordRecord | None) -> PasswordRecord | None:
        return self._passwords.exportable(record)
