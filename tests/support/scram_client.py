"""The client's side of SASL SCRAM-SHA-256 (RFC 5802, RFC 7677), written from the RFC, not from the broker."""

from __future__ import annotations

import base64
import hashlib
import hmac

NONCE = "fyko+d2lbbFgONRv9qkxdawL"


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()


class ScramClient:
    """One exchange: `first`, `final`, `check`, in this order.

    Attributes:
        server_final: what the server has to prove itself with, behind `final`.
    """

    def __init__(self, user: str, password: str, nonce: str = NONCE) -> None:
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._password = password.encode()
        self._nonce = nonce
        self.server_final = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        text = challenge.decode()
        fields = dict(part.split("=", 1) for part in text.split(","))
        assert fields["r"].startswith(self._nonce)
        assert len(fields["r"]) > len(self._nonce), "the server has added nothing to the nonce"
        salted = hashlib.pbkdf2_hmac(
            "sha256", self._password, base64.b64decode(fields["s"]), int(fields["i"])
        )
        without_proof = f"c={base64.b64encode(b'n,,').decode()},r={fields['r']}"
        messages = f"{self._bare},{text},{without_proof}".encode()
        client_key = _mac(salted, b"Client Key")
        signature = _mac(hashlib.sha256(client_key).digest(), messages)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self.server_final = b"v=" + base64.b64encode(_mac(_mac(salted, b"Server Key"), messages))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, last: bytes) -> None:
        assert last == self.server_final
