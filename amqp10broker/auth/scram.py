"""SASL SCRAM-SHA-256 on the server's side (RFC 5802, RFC 7677), without channel binding.

`ScramServer` reads and writes the four messages of one exchange. The caller supplies nonce and verifier.
The client proves that it has the password, and the server that it has the client's verifier, without
sending either.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from typing import Final

from amqp10broker.errors import BrokerError
from amqp10broker.metadata.users import ScramRecord

# Stolen records are attacked by the cheaper of SCRAM's verifier and argon2's hash, so this is well above the
# 4096 of RFC 7677; every client computes it once a login.
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
            # authentication" (RFC 5802, section 6). With "y" the client supports it but has seen no offer.
            raise ScramError("channel binding is not offered here")
        self._header = found["header"]
        self.authzid = _unescaped(found["authzid"]) if found["authzid"] else ""
        self.user = _unescaped(found["user"])
        self._client_first_bare = found["bare"]
        self._nonce = found["nonce"] + self._nonce

    def challenge(self, record: ScramRecord) -> bytes:
        """Return the server's first message; for an unknown user `record` is one that no proof meets."""
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
        stringprep.in_table_c12,
        stringprep.in_table_c21_c22,
        stringprep.in_table_c3,
        stringprep.in_table_c4,
        stringprep.in_table_c5,
        stringprep.in_table_c6,
        stringprep.in_table_c7,
        stringprep.in_table_c8,
        stringprep.in_table_c9,
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
