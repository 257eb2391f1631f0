"""Contexts from files, and the user that a certificate names."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from amqp10broker.auth.tls import CertificateUser, certificate_user, first_end_ms, server_context
from amqp10broker.config import Config
from amqp10broker.errors import ConfigError
from tests.support.certificates import Certificates, certificates

__all__ = ["certificates"]

# As ssl.SSLSocket.getpeercert gives it.
CERTIFICATE: dict[str, Any] = {
    "subject": (
        (("countryName", "DE"),),
        (("organizationName", "Example, Inc"),),
        (("commonName", "worker"),),
    ),
    "subjectAltName": (("DNS", "w1.example.org"), ("DNS", "w2.example.org"), ("email", "w@example.org")),
}


@pytest.fixture(scope="module")
def files(certificates: Certificates) -> Path:
    certificates.file("empty.pem", "nothing")
    certificates.client("other")
    return Path(certificates.ca).parent


def settings(files: Path, **others: Any) -> Config:
    good: dict[str, Any] = {
        "tls_certificate": str(files / "server.pem"),
        "tls_key": str(files / "server.key"),
        "tls_ca": str(files / "ca.pem"),
    }
    return Config(**good | others)


def context_of(config: Config) -> ssl.SSLContext:
    context = server_context(config)
    assert context is not None
    return context


@pytest.mark.parametrize(
    ("verify", "mode"),
    [("none", ssl.CERT_NONE), ("optional", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)],
)
def test_a_context_asks_for_certificates_as_set(files: Path, verify: str, mode: ssl.VerifyMode) -> None:
    context = context_of(settings(files, tls_verify=verify))
    assert context.verify_mode is mode
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    newer = context_of(settings(files, tls_minimum_version="1.3"))
    assert newer.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("others", "text"),
    [
        (
            {"tls_verify": "required", "tls_ca": None},
            "tls_ca is not given; must name who signs clients' certificates, or turn verifying off",
        ),
        (
            {"tls_certificate": "missing.pem"},
            "tls_certificate names {files}/missing.pem, which cannot be read: No such file or directory",
        ),
        ({"tls_certificate": "empty.pem"}, "tls_certificate and its key cannot be used: "),
        ({"tls_key": "empty.pem"}, "tls_certificate and its key cannot be used: "),
        (
            {"tls_key": None},
            "tls_certificate and its key cannot be used: not in PEM format, or without a key; must be a PEM",
        ),
        (
            {"tls_key": "client-other-True.key"},
            "tls_certificate and its key cannot be used: KEY_VALUES_MISMATCH; must be a PEM certificate",
        ),
        ({"tls_ca": "empty.pem"}, "tls_ca holds no certificate: "),
        ({"tls_key": "missing.pem"}, "tls_key names {files}/missing.pem, which cannot be read: No such"),
        ({"tls_ca": "missing.pem"}, "tls_ca names {files}/missing.pem, which cannot be read: No such"),
    ],
)
def test_bad_settings_name_the_one_to_mend(files: Path, others: dict[str, Any], text: str) -> None:
    """They are refused at start, not at a connection."""
    given = {
        key: str(files / value) if isinstance(value, str) and value.endswith((".pem", ".key")) else value
        for key, value in others.items()
    }
    with pytest.raises(ConfigError) as caught:
        server_context(settings(files, **given))
    assert str(caught.value).startswith(text.format(files=files))


def test_a_key_with_a_password_is_refused_and_not_asked_for(files: Path) -> None:
    """OpenSSL would prompt at the terminal, where no operator is."""
    key = load_pem_private_key((files / "server.key").read_bytes(), None)
    locked = files / "locked.key"
    locked.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"geheim"))
    )
    with pytest.raises(ConfigError, match="tls_certificate and its key cannot be used"):
        server_context(settings(files, tls_key=str(locked)))
    given = settings(files, tls_key=str(locked), tls_key_password="geheim")
    assert context_of(given).verify_mode is ssl.CERT_NONE
    assert "geheim" not in repr(given)


@pytest.mark.parametrize(
    ("part", "user"),
    [
        (CertificateUser.COMMON_NAME, "worker"),
        (CertificateUser.DISTINGUISHED_NAME, "CN=worker,O=Example\\, Inc,C=DE"),
        (CertificateUser.SAN_DNS, "w1.example.org"),
        (CertificateUser.SAN_EMAIL, "w@example.org"),
        (CertificateUser.SAN_URI, None),
    ],
)
def test_the_user_stands_where_it_is_configured(part: CertificateUser, user: str | None) -> None:
    """The first alternative name of the configured kind counts."""
    assert certificate_user(CERTIFICATE, part) == user


@pytest.mark.parametrize(
    "certificate",
    [
        None,
        {},
        {"subject": ((("organizationName", "x"),),)},
        {"subject": ((("commonName", "a"),), (("commonName", "b"),))},
        {"subject": ((("commonName", "a\0b"),),)},
        {"subject": ((("commonName", ""),),)},
    ],
)
def test_a_certificate_without_a_clear_name_names_nobody(certificate: dict[str, Any] | None) -> None:
    """It has no name, several, or one that cannot be a user's."""
    assert certificate_user(certificate, CertificateUser.COMMON_NAME) is None


def ms(year: int, month: int = 1, day: int = 2) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp() * 1000)


def pem(*years: int) -> str:
    authority = trustme.CA()
    made = [
        authority.issue_cert(
            "host", not_before=datetime(1970, 1, 1, tzinfo=UTC), not_after=datetime(year, 1, 2, tzinfo=UTC)
        )
        for year in years
    ]
    return "".join(each.cert_chain_pems[0].bytes().decode() for each in made)


@pytest.mark.parametrize("year", [1999, 2000, 2031, 2049, 2050, 2101])
def test_the_end_is_read_in_both_forms_of_time(year: int) -> None:
    """RFC 5280: the year has two digits until 2049, four from then on."""
    assert first_end_ms(pem(year)) == ms(year)


def test_what_is_no_certificate_has_no_end() -> None:
    """The end is then unknown; nothing is guessed, and nothing is raised."""
    whole = pem(2040)
    lines = whole.splitlines()
    assert first_end_ms("") is None
    assert first_end_ms("hello") is None
    assert first_end_ms(whole.replace("CERTIFICATE", "PRIVATE KEY")) is None
    for kept in range(1, len(lines) - 1):
        cut = "\n".join([lines[0], *lines[1:kept], lines[-1]])
        assert first_end_ms(cut) is None
    garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    assert first_end_ms(garbage) is None
    assert first_end_ms(garbage + whole) is None
