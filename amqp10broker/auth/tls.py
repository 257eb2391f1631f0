"""TLS: contexts for clients and between nodes, and the user that a client's certificate names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from ssl import (
    CERT_NONE,
    CERT_OPTIONAL,
    CERT_REQUIRED,
    PROTOCOL_TLS_CLIENT,
    PROTOCOL_TLS_SERVER,
    PEM_cert_to_DER_cert,
    SSLContext,
    SSLError,
    TLSVersion,
)
from typing import Any, Final

from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError


class CertificateUser(Enum):
    """The part of a client's certificate that is the user name for SASL EXTERNAL."""

    COMMON_NAME = "common_name"
    DISTINGUISHED_NAME = "distinguished_name"
    SAN_DNS = "san_dns"
    SAN_EMAIL = "san_email"
    SAN_URI = "san_uri"


_VERIFY_MODES: Final = {
    "none": CERT_NONE,
    "optional": CERT_OPTIONAL,  # a client may present one; it must then be valid
    "required": CERT_REQUIRED,  # clients without a valid one are refused
}
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSIONS: Final = {"1.2": TLSVersion.TLSv1_2, "1.3": TLSVersion.TLSv1_3}


def server_context(config: Config) -> SSLContext | None:
    """Make the context for accepting clients, None without a certificate; reads the files. Raises
    `ConfigError` if a file cannot be read or has the wrong content; names the setting.
    """
    if config.tls_certificate is None:
        return None
    verify = _VERIFY_MODES[config.tls_verify]
    if verify is not CERT_NONE and config.tls_ca is None:
        raise ConfigError(
            "tls_ca", "is not given", "must name who signs clients' certificates, or turn verifying off"
        )
    names = ("tls_certificate", "tls_key", "tls_ca")
    context = _context(PROTOCOL_TLS_SERVER, config, names, config.tls_key_password)
    context.minimum_version = _VERSIONS[config.tls_minimum_version]
    context.verify_mode = verify
    return context


@dataclass(frozen=True, slots=True)
class MutualTls:
    """TLS between nodes: each presents a certificate and requires one of the other.

    Names in certificates are not checked: the cluster's secret over both certificates proves that the other
    side is a node, and that no attacker is between them.
    """

    server: SSLContext
    client: SSLContext
    certificate: bytes


def mutual_tls(config: Config) -> MutualTls | None:
    """Make the contexts between nodes, None without a certificate; reads the files. Raises `ConfigError` if a
    file cannot be read or has the wrong content; names the setting.
    """
    if config.cluster_tls_cert_file is None:
        return None
    if config.cluster_tls_ca_file is None:
        raise ConfigError(
            "cluster_tls_ca_file", "is not given", "must name who signs the certificates of the nodes"
        )
    names = ("cluster_tls_cert_file", "cluster_tls_key_file", "cluster_tls_ca_file")
    server = _context(PROTOCOL_TLS_SERVER, config, names)
    client = _context(PROTOCOL_TLS_CLIENT, config, names)
    for context in (server, client):
        context.minimum_version = TLSVersion.TLSv1_3
        context.verify_mode = CERT_REQUIRED
    with open(config.cluster_tls_cert_file, encoding="ascii", errors="replace") as stream:
        first, *_ = _PEM.findall(stream.read())
    return MutualTls(server, client, PEM_cert_to_DER_cert(first))


def _context(
    protocol: int, config: Config, names: tuple[str, str, str], password: str | None = None
) -> SSLContext:
    """Make a context. `names`: the settings with certificate, key and authorities of the other side."""
    files = [getattr(config, name) for name in names]
    for name, file in zip(names, files, strict=True):
        if file is not None:
            _check_readable(name, file)
    certificate, key, authorities = files
    context = SSLContext(protocol)
    context.check_hostname = False
    try:
        # An empty text, not None: with None, OpenSSL would prompt for a password at the terminal.
        context.load_cert_chain(certificate, key, password or "")
    except SSLError as error:
        raise ConfigError(
            names[0],
            f"and its key cannot be used: {error.reason or 'not in PEM format, or without a key'}",
            "must be a PEM certificate and the private key that belongs to it",
        ) from error
    if authorities is not None:
        try:
            context.load_verify_locations(authorities)
        except SSLError as error:
            raise ConfigError(
                names[2],
                f"holds no certificate: {error.reason or 'not in PEM format'}",
                "must be PEM certificates",
            ) from error
    return context


def _check_readable(setting: str, file: str) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise ConfigError(
            setting,
            f"names {file}, which cannot be read: {error.strerror}",
            "give a PEM file that you may read",
        ) from error


# Attributes of a name as RFC 4514 abbreviates them, by the long names that `ssl` uses.
_SHORT: Final = {
    "commonName": "CN", "localityName": "L", "stateOrProvinceName": "ST", "organizationName": "O",
    "organizationalUnitName": "OU", "countryName": "C", "streetAddress": "STREET", "domainComponent": "DC",
    "userId": "UID",
}  # fmt: skip
_SAN: Final = {
    CertificateUser.SAN_DNS: "DNS",
    CertificateUser.SAN_EMAIL: "email",
    CertificateUser.SAN_URI: "URI",
}


def certificate_user(certificate: Mapping[str, Any] | None, part: CertificateUser) -> str | None:
    """Return the user that a client's verified certificate names. `certificate`: as returned by
    `ssl.SSLSocket.getpeercert`; None or empty without a verified one. Returns None if the certificate does
    not have that part, or a common name more than once.
    """
    if not certificate:
        return None
    if part in _SAN:
        names = (value for kind, value in certificate.get("subjectAltName", ()) if kind == _SAN[part])
        return _usable(next(names, None))
    if part is CertificateUser.DISTINGUISHED_NAME:
        # RFC 4514 writes the most specific attribute first, certificates have it last.
        pairs = [f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in _attributes(certificate)]
        return _usable(",".join(reversed(pairs)))
    common_names = [value for name, value in _attributes(certificate) if name == "commonName"]
    return _usable(common_names[0]) if len(common_names) == 1 else None


def _attributes(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for names in certificate.get("subject", ()):
        yield from names


def _usable(name: str | None) -> str | None:
    return name if name and "\0" not in name else None


def _escaped(value: str) -> str:
    return "".join(f"\\{char}" if char in ',+"\\<>;=' else char for char in value)


_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18


def first_end_ms(pem: str) -> int | None:
    """Return the first expiry (`notAfter`, RFC 5280 section 4.1.2.5) of a file's certificates, in
    milliseconds since 1970; None: there is none, or one cannot be read. The standard library reads it only
    from certificates that it has verified, which expired ones are not.
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
        # The year has two digits: 50 to 99 belong to the last century.
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
