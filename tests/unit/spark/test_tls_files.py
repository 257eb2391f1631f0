"""Files for TLS that cannot be used: each fault is told with its option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from amqp10broker.spark.connection import tls_context
from amqp10broker.spark.errors import BrokerRefused
from amqp10broker.spark.options import parse_source
from tests.support.certificates import Certificates, certificates

__all__ = ["certificates"]

NAMES = {"ca": "tls.caFile", "certificate": "tls.certificateFile", "key": "tls.keyFile"}


def context_of(**files: str) -> Any:
    given = {NAMES[name]: path for name, path in files.items()}
    return tls_context(parse_source({"url": "amqps://h", "stream": "s", **given}, streaming=False).connection)


def refused(**files: str) -> str:
    with pytest.raises(BrokerRefused) as raised:
        context_of(**files)
    return str(raised.value)


@pytest.fixture
def encrypted(certificates: Certificates, tmp_path: Path) -> str:
    key = serialization.load_pem_private_key(Path(certificates.server_key).read_bytes(), None)
    path = tmp_path / "encrypted.key"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hunter2"),
        )
    )
    return str(path)


def test_what_can_be_used(certificates: Certificates, tmp_path: Path) -> None:
    context_of(ca=certificates.ca, certificate=certificates.server, key=certificates.server_key)
    both = tmp_path / "both.pem"
    both.write_text(Path(certificates.server).read_text() + Path(certificates.server_key).read_text())
    context_of(certificate=str(both))


def test_an_encrypted_key_is_refused(certificates: Certificates, encrypted: str, tmp_path: Path) -> None:
    told = refused(certificate=certificates.server, key=encrypted)
    assert f"tls.keyFile '{encrypted}': the key is encrypted; give one without a pass phrase" in told
    both = tmp_path / "both.pem"
    both.write_text(Path(certificates.server).read_text() + Path(encrypted).read_text())
    assert f"tls.certificateFile is '{both}': the key is encrypted" in refused(certificate=str(both))


def test_files_that_are_something_else(certificates: Certificates, tmp_path: Path) -> None:
    junk = certificates.file("junk.pem", "junk")
    _, other_key = certificates.client("somebody")
    server = certificates.server
    assert "option tls.caFile is '/not/there', which cannot be used: No such file" in refused(ca="/not/there")
    assert "option tls.caFile" in refused(ca=junk)
    assert "option tls.certificateFile is '/not/there', which" in refused(certificate="/not/there")
    assert "option tls.keyFile is '/not/there', which" in refused(certificate=server, key="/not/there")
    assert "option tls.keyFile is '/', which" in refused(certificate=server, key="/")
    assert "does not belong to the certificate" in refused(certificate=server, key=other_key)
    for certificate in (junk, server):
        assert f"is '{certificate}', which cannot be used: a certificate and its private key" in refused(
            certificate=certificate
        )
    assert f"'{server}' and tls.keyFile '{junk}', which" in refused(certificate=server, key=junk)
