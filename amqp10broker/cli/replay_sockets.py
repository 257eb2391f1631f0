"""Sockets of ``amqp10broker frames replay``: one thread, one connection per replayed one."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from typing import TYPE_CHECKING, Final

from amqp10broker.client.options import WOULD_BLOCK, receive_some, with_tls
from amqp10broker.errors import BrokerError

if TYPE_CHECKING:
    from amqp10broker.client.options import BrokerUrl
    from amqp10broker.tools.replay.player import Player
    from amqp10broker.tools.replay.replay import Replay

_LOOK_AGAIN_S: Final = 0.25
"""The selector does not wait for longer, so that ctrl-C works on every system."""


def drive(replay: Replay, url: BrokerUrl, timeout_s: float) -> None:
    """Run a replay until all connections have ended."""
    context = ssl.create_default_context() if url.tls else None
    sockets: dict[Player, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                for player in replay.wanted(time.monotonic()):
                    _connect(replay, player, url, context, timeout_s, sockets, selector)
                wake = replay.advance(time.monotonic())
                run_inline = False
                for player, sock in list(sockets.items()):
                    was_full = replay.is_full(player)
                    _write(replay, player, sock)
                    run_inline = run_inline or (was_full and not replay.is_full(player))
                    if player.closed:
                        selector.unregister(sock)
                        sock.close()
                        del sockets[player]
                        continue
                    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if player.unsent else 0)
                    if selector.get_key(sock).events != events:
                        selector.modify(sock, events, player)
                if wake is None:
                    return
                pause = 0.0 if run_inline else min(max(0.0, wake - time.monotonic()), _LOOK_AGAIN_S)
                for key, ready in selector.select(pause):
                    if ready & selectors.EVENT_READ:
                        _read(replay, key.data, sockets[key.data])
        finally:
            for sock in sockets.values():
                sock.close()


def _connect(
    replay: Replay,
    player: Player,
    url: BrokerUrl,
    context: ssl.SSLContext | None,
    timeout_s: float,
    sockets: dict[Player, socket.socket],
    selector: selectors.BaseSelector,
) -> None:
    try:
        sock = socket.create_connection((url.host, url.port), timeout_s)
        if context is not None:
            sock = with_tls(sock, context, url.host, url.port)
    except OSError as error:
        replay.lost(player, f"no connection to {url.host}:{url.port}: {error.strerror or error}")
        return
    except BrokerError as error:
        replay.lost(player, str(error))
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    sockets[player] = sock
    selector.register(sock, selectors.EVENT_READ, player)
    replay.connected(player, time.monotonic())


def _write(replay: Replay, player: Player, sock: socket.socket) -> None:
    while player.unsent:
        try:
            with memoryview(player.unsent) as view:
                sent = sock.send(view)
        except WOULD_BLOCK:
            return
        except OSError as error:
            replay.lost(player, f"the connection was lost: {error.strerror or error}")
            return
        del player.unsent[:sent]


def _read(replay: Replay, player: Player, sock: socket.socket) -> None:
    try:
        data = receive_some(sock)
    except WOULD_BLOCK:
        return
    except OSError as error:
        replay.lost(player, f"the connection was lost: {error.strerror or error}")
        return
    if data:
        replay.receive(player, data, time.monotonic())
    else:
        replay.lost(player, "the broker closed the socket without a word")
