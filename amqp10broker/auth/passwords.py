"""Password records: making them, and verifying a password against one; and SCRAM-SHA-256 on the server's side
(RFC 5802, RFC 7677), without channel binding.

New passwords are stored as argon2id. One verification takes some twenty milliseconds on purpose, so it is
split: `Passwords.quick` decides at once when it can, and `Passwords.slow` does the rest in a thread. A
correct login is remembered under a key of this process, so that the next one costs microseconds. A wrong
password always takes the slow way, whatever the record's algorithm and whether the user exists: the time does
not reveal user names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from argon2 import PasswordHasher, exceptions

from amqp10broker.errors import BrokerError, InvalidArgument
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, ScramRecord, Users

# Stolen records are attacked by the cheaper of SCRAM's verifier and argon2's hash, so this is well above the
# 4096 of RFC 7677. Every client computes it once for each login.
ITERATIONS: Final = 32_768
SALT_BYTES: Final = 16

_USER_NAME: Final = re.compile(r"(?:[^=,]|=2C|=3D)+")
# gs2-header, then client-first-message-bare (RFC 5802, section 7).
_CLIENT_FIRST: Final = re.compile(
    r"(?P<header>(?P<binding>p=[^,]*|n|y),(?:a=(?P<authzid>[^,]*))?,)(?P<bare>n=(?P<user>[^,]*),r=(?P<nonce>[^,]+)(?:,.*)?)",
    re.DOTALL,
)
_CLIENT_FINAL: Final = re.compile(
    r"(?P<unproven>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*)(?:,[^,]*)*?),p=(?P<proof>[^,]*)", re.DOTALL
)


class ScramError(BrokerError):
    """A message of the client is malformed, or its proof is wrong."""


def derive(password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramRecord:
    """Make the verifier of a password. Takes some milliseconds; run it in a thread. `password`: in plain;
    normalised as RFC 5802 requires. Raises `ScramError` if the password has characters that SASLprep forbids.
    """
    prepared = saslprep(password).encode()
    salted = hashlib.pbkdf2_hmac("sha256", prepared, salt, iterations)
    client_key = _hmac(salted, b"Client Key")
    return ScramRecord(salt, iterations, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key"))


class ScramServer:
    """One exchange: `read_first`, `challenge`, `read_final`, in this order."""

    def __init__(self, nonce: str) -> None:
        self.user = ""
        self.authzid = ""
        self._nonce = nonce
        self._header = ""
        self._client_first_bare = ""
        self._server_first = ""
        self._record: ScramRecord | None = None

    def read_first(self, message: bytes) -> None:
        """Read the client's first message. Raises `ScramError` if it is malformed, or requires channel
        binding, which is not offered.
        """
        found = _CLIENT_FIRST.fullmatch(_text(message))
        if found is None:
            raise ScramError("client-first-message is not gs2-header, n=user, r=nonce")
        if found["binding"].startswith("p="):
            # "If the flag is set to "p" and the server does not support [it], the server MUST fail
            # authentication" (RFC 5802, section 6). With "y" the client supports it but has got no offer.
            raise ScramError("channel binding is not offered here")
        self._header = found["header"]
        self.authzid = _unescaped(found["authzid"]) if found["authzid"] else ""
        self.user = _unescaped(found["user"])
        self._client_first_bare = found["bare"]
        self._nonce = found["nonce"] + self._nonce

    def challenge(self, record: ScramRecord) -> bytes:
        """Return the server's first message. For an unknown user `record` is one that no proof matches."""
        self._record = record
        salt = base64.b64encode(record.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={record.iterations}"
        return self._server_first.encode()

    def read_final(self, message: bytes) -> bytes:
        """Check the client's proof. Returns the server's final message, which proves that the server has the
        verifier. Raises `ScramError` if the message is malformed, belongs to another exchange, or the proof
        is wrong.
        """
        record = self._record
        assert record is not None, "no challenge was made"
        found = _CLIENT_FINAL.fullmatch(_text(message))
        if found is None:
            raise ScramError("client-final-message is not c=binding, r=nonce, p=proof")
        if found["binding"] != base64.b64encode(self._header.encode()).decode():
            raise ScramError("channel binding data is not the header of the first message")
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise ScramError("nonce is not that of this exchange")
        try:
            proof = base64.b64decode(found["proof"], validate=True)
        except (binascii.Error, ValueError):
            raise ScramError("proof is not base64") from None
        messages = f"{self._client_first_bare},{self._server_first},{found['unproven']}".encode()
        signature = _hmac(record.stored_key, messages)
        if len(proof) != len(signature):
            raise ScramError("proof has the wrong length")
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), record.stored_key):
            raise ScramError("invalid credentials")
        return b"v=" + base64.b64encode(_hmac(record.server_key, messages))


def saslprep(text: str) -> str:
    """Normalise a password so that it is the same however it was typed (RFC 4013). Raises `ScramError` if it
    has forbidden characters, or mixes directions as RFC 3454 forbids.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    forbidden = (
        *(stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3),
        *(stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6),
        *(stringprep.in_table_c7, stringprep.in_table_c8, stringprep.in_table_c9),
    )
    if any(table(char) for char in prepared for table in forbidden):
        raise ScramError("password has characters that SASLprep forbids (RFC 4013, section 2.3)")
    if any(map(stringprep.in_table_d1, prepared)):
        mixed = any(map(stringprep.in_table_d2, prepared))
        ends = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if mixed or not ends:
            raise ScramError("password mixes writing directions (RFC 3454, section 6)")
    return prepared


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("message is not UTF-8") from None


def _unescaped(name: str) -> str:
    if not _USER_NAME.fullmatch(name):
        raise ScramError("name has a bare = (only =2C and =3D may follow it), or is empty")
    return name.replace("=2C", ",").replace("=3D", "=")


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
        # Name -> (the record for which the password was right, keyed digest of name and password).
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
        """Return whether a password is known to be right. False is not final: call `slow`."""
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
            # This takes as long as a real verification.
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

        For an unknown user, or a user without a password ever known in plain, it makes a verifier that no
        proof matches and that stays the same. All cases take the time of one derivation.
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
        user = self._users.by_name.get(name)
        return None if user is None else user.password

    def digest(self, name: str, password: bytes) -> bytes:
        """Return a digest of a name and a password, keyed by a secret of this process."""
        # The name's length comes first, so that no other pair gives the same bytes.
        encoded = name.encode()
        return hmac.new(
            self._key, len(encoded).to_bytes(4, "big") + encoded + password, hashlib.sha256
        ).digest()

    def _decoy_record(self) -> PasswordRecord:
        if self._decoy is None:
            # It is not a real hash: argon2 has done all its work before it compares.
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
    """Check that SASL PLAIN can send a password: not empty, and no NUL. Raises `InvalidArgument`."""
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
    """Returns records that were made before; one for each time that a password occurs, with its own salt."""

    def __init__(self, passwords: Passwords, records: Mapping[str, list[PasswordRecord]]) -> None:
        self._passwords = passwords
        self._records = records

    def make(self, password: str) -> PasswordRecord:
        ready = self._records.get(password)
        return ready.pop() if ready else self._passwords.make(password)

    def exportable(self, record: PasswordRecord | None) -> PasswordRecord | None:
        return self._passwords.exportable(record)
