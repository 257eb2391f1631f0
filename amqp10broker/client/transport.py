"""Sockets of the blocking client, plain or under TLS."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from amqp10broker.client.errors import PORT_MAX, TimedOutError, TlsError, place_of
from amqp10broker.client.options import READ_BYTES

WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Raised by a socket that has no data, or no room, at present. To be caught before OSError."""


def check_port(port: int) -> None:
    """Sockets accept a number above 65535, too, and connect to the port of its lower 16 bits."""
    if not 0 < port <= PORT_MAX:
        raise ValueError(f"port is {port}")


def with_tls(sock: socket.socket, context: ssl.SSLContext, host: str, port: int) -> ssl.SSLSocket:
    """Do the TLS handshake within the socket's own time-out. A failure closes the socket."""
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except TimeoutError as error:
        sock.close()
        raise TimedOutError(
            f"TLS handshake with {place_of(host, port)}",
            sock.gettimeout() or 0.0,
            "is that the broker's TLS port?",
        ) from error
    except OSError as error:
        sock.close()
        raise tls_failed(host, port, error) from error


def tls_failed(host: str, port: int, error: OSError) -> TlsError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(
            f"the certificate of {place_of(host, port)} is not trusted: {error.verify_message}; give the "
            "certificate of the authority that signed it, and the host name that stands in it"
        )
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    return TlsError(
        f"no TLS with {place_of(host, port)}: {reason}; is that the broker's TLS port, and does the broker "
        "ask for a client certificate?"
    )


def receive_some(sock: socket.socket) -> bytes:
    """Raises one of `WOULD_BLOCK` if nothing has arrived; empty at the end of the stream."""
    data = sock.recv(READ_BYTES)
    if not isinstance(sock, ssl.SSLSocket) or not data:
        return data
    # A TLS record has 16 KiB at most, and no selector reports data that OpenSSL has decrypted already.
    pieces = [data]
    size = len(data)
    while size < READ_BYTES or sock.pending():
        try:
            data = sock.recv(READ_BYTES)
        except (*WOULD_BLOCK, OSError):
            break  # the next call gets the same error
        if not data:
            break
        pieces.append(data)
        size += len(data)
    return b"".join(pieces)
