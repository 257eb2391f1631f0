"""Reads the files of the options for TLS, on the driver and on each worker, before anything is connected."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final, NoReturn

from amqp10broker.spark.errors import BrokerRefused
from amqp10broker.spark.options import ConnectionOptions

_SAME_EVERYWHERE: Final = "give a PEM file that is on the driver and on all workers under this path"


def tls_context(options: ConnectionOptions) -> ssl.SSLContext | None:
    """Return the TLS context, None for a plain connection. Raises `BrokerRefused` if a file of the options
    cannot be used.
    """
    if not options.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
    except OSError as error:
        raise _unusable("tls.caFile", options.ca_file, error) from error
    if options.certificate_file is not None:
        _load_own(context, options.certificate_file, options.key_file)
    return context


def _load_own(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    for option, path in (("tls.certificateFile", certificate), ("tls.keyFile", key)):
        if path is not None:
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                raise _unusable(option, path, error) from error
    where = (
        f"option tls.certificateFile is '{certificate}'"
        if key is None
        else f"option tls.certificateFile is '{certificate}' and tls.keyFile '{key}'"
    )

    def pass_phrase() -> NoReturn:
        # Without this function OpenSSL prompts at the terminal, and a query hangs.
        raise BrokerRefused(f"{where}: the key is encrypted; give one without a pass phrase")

    try:
        context.load_cert_chain(certificate, key, password=pass_phrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BrokerRefused(
                f"{where}: the key does not belong to the certificate; give the two that were made together"
            ) from error
        raise BrokerRefused(
            f"{where}, which cannot be used: a certificate and its private key, both in PEM format, are "
            "wanted, in one file or in two"
        ) from error


def _unusable(option: str, path: str | None, error: OSError) -> BrokerRefused:
    # PyPy's `ssl` sets only the number of the system's errors.
    if error.errno is not None and not isinstance(error, ssl.SSLError):
        reason = os.strerror(error.errno)
    else:
        reason = error.strerror or str(error)
    return BrokerRefused(f"option {option} is '{path}', which cannot be used: {reason}; {_SAME_EVERYWHERE}")
