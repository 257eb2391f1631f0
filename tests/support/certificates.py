"""Certificates for tests of TLS, made by `trustme` when a test run first needs them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Self

import pytest
import trustme

SERVER_NAME = "localhost"


class Certificates:
    """An authority, what it signed, and one certificate that another signed; as PEM files.

    Attributes:
        ca: the authority's certificate.
        strangers: that of another authority.
        server, server_key: for ``localhost`` and ``127.0.0.1``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self._stranger = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca)
        self.strangers = str(folder / "strangers.pem")
        self._stranger.cert_pem.write_to_path(self.strangers)
        issued = self._authority.issue_cert(SERVER_NAME, "127.0.0.1")
        self.server, self.server_key = self._write("server", issued)

    @classmethod
    def make(cls, folder: Path) -> Self:
        return cls(folder)

    def _write(self, name: str, issued: trustme.LeafCert) -> tuple[str, str]:
        certificate = self._folder / f"{name}.pem"
        key = self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return str(certificate), str(key)

    def client(self, common_name: str, *names: str, trusted: bool = True) -> tuple[str, str]:
        authority = self._authority if trusted else self._stranger
        issued = authority.issue_cert(*names, common_name=common_name)
        return self._write(f"client-{common_name}-{trusted}", issued)

    def file(self, name: str, text: str) -> str:
        path = self._folder / name
        path.write_text(text)
        return str(path)

    def client_context(self, certificate: tuple[str, str] | None = None, **limits: Any) -> ssl.SSLContext:
        """Return a client's context: it trusts the authority, and has the certificate if given."""
        context = ssl.create_default_context(cafile=self.ca)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        for name, version in limits.items():
            setattr(context, name, version)
        return context


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))
