"""An authority's key set over real HTTP or HTTPS, from a thread of its own."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc.jwk import Key

PATIENCE_S = 20.0


class KeyServer:
    """Answers each request with the keys that it has then.

    Attributes:
        asked: requests so far.
        answer: what it sends in place of an HTTP answer with the keys, with its head; None: the keys.
        held: while it is clear, requests wait for their answer.
    """

    def __init__(self, tls: tuple[str, str] | None = None) -> None:
        self._tls = tls
        self.asked = 0
        self.answer: bytes | None = None
        self.held = threading.Event()
        self.held.set()
        self._keys: list[dict[str, Any]] = []
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def uri(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}/keys"

    def sign_with(self, *keys: Key) -> None:
        self._keys = [each.as_dict(private=False) for each in keys]

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                if not outer.held.wait(PATIENCE_S):
                    return
                body = json.dumps({"keys": outer._keys}).encode()
                head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
                with suppress(ConnectionError):  # who asked may wait no more
                    self.wfile.write(outer.answer or head + body)

            def log_message(self, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        if self._tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*self._tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self.held.set()
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def key_server(*keys: Key, tls: tuple[str, str] | None = None) -> Iterator[KeyServer]:
    """Run a key server for one test, with TLS if certificate and key files are given."""
    server = KeyServer(tls)
    server.sign_with(*keys)
    server.start()
    try:
        yield server
    finally:
        server.stop()
