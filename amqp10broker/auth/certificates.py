"""The expiry of certificates: the field notAfter of X.509 (RFC 5280, section 4.1.2.5), read from PEM files.

The standard library reads it only from certificates that it has verified, which expired ones are not.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from ssl import PEM_cert_to_DER_cert
from typing import Final

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18


def first_end_ms(pem: str) -> int | None:
    """Return the first expiry of a file's certificates, in milliseconds since 1970; None: there is none, or
    one cannot be read.
    """
    try:
        return min((_end_ms(PEM_cert_to_DER_cert(each)) for each in _PEM.findall(pem)), default=None)
    except (ValueError, IndexError):
        return None


def _end_ms(der: bytes) -> int:
    certificate, _ = _value(der, _SEQUENCE)
    to_be_signed, _ = _value(certificate, _SEQUENCE)
    if to_be_signed[0] == _VERSION:
        _, to_be_signed = _value(to_be_signed)
    for _ in ("serialNumber", "signature", "issuer"):
        _, to_be_signed = _value(to_be_signed)
    validity, _ = _value(to_be_signed, _SEQUENCE)
    _, not_after = _value(validity)
    written, _ = _value(not_after)
    if not_after[0] == _UTC_TIME:
        # Two digits of the year: 50 to 99 are of the last century.
        written = (b"19" if written[:2] >= b"50" else b"20") + written
    elif not_after[0] != _GENERALIZED_TIME:
        raise ValueError("no time")
    when = datetime.strptime(written.decode("ascii"), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    return int(when.timestamp() * 1000)


def _value(der: bytes, wanted: int | None = None) -> tuple[bytes, bytes]:
    if wanted is not None and der[0] != wanted:
        raise ValueError("another type was expected")
    size, start = der[1], 2
    if size >= 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start], "big")
    if start + size > len(der):
        raise ValueError("it is cut short")
    return der[start : start + size], der[start + size :]
