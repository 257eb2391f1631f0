"""Queues of direct reply-to, as all nodes of a cluster use them.

::

    REPLY_QUEUES   JSON: {"ask": true} | {"queues": [[vhost, name]], "newest": number} |
                   {"opened": [vhost, name]} | {"closed": [vhost, name]}
    REPLIES        vhost | name | a `Publish` (`REPLIES`)

Such a queue is in no log: its node announces it to the others, and they request all announcements when they
have found that node. Its name contains its place::

    amq.rabbitmq.reply-to.<node>.<start of the node>.<number>.<secret>

A request may arrive by a third node before the announcement of its reply queue. The number shows that the
announcement is pending: the queue then counts as existing. Messages are sent to its node without
confirmation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, Final

from amqp10broker.cluster.remote_queue.messages import LinkPort
from amqp10broker.cluster.wire import FrameKind, PeerFrame
from amqp10broker.dataclass import dataclass
from amqp10broker.layout import TEXT, BadBytes, row
from amqp10broker.metadata.queue import VOLATILE_KIND, DeclaredQueue, Owner, QueueHandle
from amqp10broker.metadata.vhost import REPLIES_PREFIX, VOLATILE, VirtualHost
from amqp10broker.queues.commands import DELETE, Publish
from amqp10broker.queues.layouts import OF_SESSIONS
from amqp10broker.queues.volatile import RelayedQueue, VolatileQueue

REPLY_KINDS: Final = frozenset((FrameKind.REPLY_QUEUES, FrameKind.REPLIES))
EARLY_MAX: Final = 1_000
"""The queues of one node that clients may name before their announcement; some are guesses."""
REPLIES: Final = row(TEXT, TEXT, OF_SESSIONS[1])
_NUMBER: Final = re.compile("[0-9]{1,19}")

Box = Callable[[VolatileQueue], QueueHandle]
"""Makes the handle of a queue without a task."""


@dataclass(slots=True, eq=False)
class _PeerReplyQueues:
    """The announcements of another node. `queues`: by virtual host and name; None: this node does not have
    the virtual host yet. `early`: handles of queues that clients have named before their announcement.
    """

    newest: int = 0
    early: dict[tuple[str, str], QueueHandle] = field(default_factory=dict)
    queues: dict[tuple[str, str], tuple[VirtualHost, DeclaredQueue] | None] = field(default_factory=dict)


@dataclass(eq=False)
class ReplyQueues:
    _port: LinkPort
    _find_vhost: Callable[[str], VirtualHost | None]
    _box: Box
    _secret: Callable[[], str]
    _last: int = 0
    _newest: int = 0
    _own: dict[tuple[str, str], None] = field(default_factory=dict, init=False)
    _known: dict[int, _PeerReplyQueues] = field(default_factory=dict, init=False)

    # --- of this node -----------------------------------------------------------------------------

    def new_name(self) -> str:
        self._last += 1
        where = f"{self._port.node}.{self._port.incarnation}.{self._last}"
        return f"{REPLIES_PREFIX}{where}.{self._secret()}"

    def opened(self, vhost: str, name: str) -> None:
        self._own[vhost, name] = None
        self._newest = self._last
        self._tell({"opened": [vhost, name]})

    def closed(self, vhost: str, name: str) -> None:
        del self._own[vhost, name]
        self._tell({"closed": [vhost, name]})

    def _tell(self, notifications: dict[str, Any]) -> None:
        for node in list(self._port.connected):
            self._send(node, notifications)

    def _send(self, node: int, notifications: dict[str, Any]) -> None:
        self._port.send_frame(node, FrameKind.REPLY_QUEUES, 0, (json.dumps(notifications).encode(),))

    # --- of other nodes ---------------------------------------------------------------------------

    def find(self, vhost: VirtualHost, name: str) -> DeclaredQueue | None:
        """Return a queue of another node that is not among those of the virtual host, or None."""
        parts = name.removeprefix(REPLIES_PREFIX).split(".")
        if len(parts) != 4 or not all(map(_NUMBER.fullmatch, parts[:3])):
            return None
        node, incarnation, number = map(int, parts[:3])
        known = self._known.get(node)
        if known is None or incarnation != self._port.incarnations.get(node):
            return None
        if (vhost.name, name) in known.queues:
            return self._put(node, known, vhost, name)
        if number <= known.newest:
            return None
        handle = known.early.get((vhost.name, name))
        if handle is None:
            if len(known.early) >= EARLY_MAX:
                return None
            handle = known.early[vhost.name, name] = self._relay(node, vhost.name, name)
        return DeclaredQueue(name, vhost.name, VOLATILE, False, _owner(node), True, {}, handle)

    def _relay(self, node: int, vhost: str, name: str) -> QueueHandle:
        return self._box(RelayedQueue(name, partial(self._hand_on, node, vhost, name)))

    def _hand_on(self, node: int, vhost: str, name: str, command: Publish) -> None:
        if self._port.crowded(node):
            return  # at most once, as for replies without credit of their consumer
        self._port.send_frame(node, FrameKind.REPLIES, 0, REPLIES.pieces((vhost, name, command)))

    def connected(self, node: int) -> None:
        self.disconnected(node)
        self._known[node] = _PeerReplyQueues()
        self._send(node, {"ask": True})

    def disconnected(self, node: int) -> None:
        known = self._known.pop(node, None)
        if known is not None:
            for key in list(known.queues):
                _forget(known, key)
            for handle in known.early.values():
                handle.post(DELETE)

    def received(self, node: int, frame: PeerFrame) -> None:
        """Handle a frame of `REPLY_KINDS`. Raises `BadBytes`."""
        if frame.kind is FrameKind.REPLIES:
            self._deliver(frame.body)
            return
        try:
            self._hear(node, json.loads(frame.body))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise BadBytes(f"no news of queues of direct reply-to: {error}") from error

    def _hear(self, node: int, notifications: dict[str, Any]) -> None:
        if "ask" in notifications:
            self._send(node, {"queues": list(self._own), "newest": self._newest})
            return
        known = self._known.get(node)
        if known is None:
            return  # it gets the request when this node has found it
        if "closed" in notifications:
            vhost, name = notifications["closed"]
            _forget(known, (vhost, name))
            early = known.early.pop((vhost, name), None)
            if early is not None:
                early.post(DELETE)
            return
        opened = [notifications["opened"]] if "opened" in notifications else notifications["queues"]
        for vhost, name in opened:
            self._learn(node, known, vhost, name)
        known.newest = max(known.newest, int(notifications.get("newest", 0)))

    def _learn(self, node: int, known: _PeerReplyQueues, vhost_name: str, name: str) -> None:
        known.newest = max(known.newest, int(name.rsplit(".", 2)[1]))
        if (vhost_name, name) in known.queues:
            return
        known.queues[vhost_name, name] = None
        vhost = self._find_vhost(vhost_name)
        if vhost is not None:
            self._put(node, known, vhost, name)

    def _put(self, node: int, known: _PeerReplyQueues, vhost: VirtualHost, name: str) -> DeclaredQueue:
        # Links that were attached before the announcement are notified of the queue's end, too.
        handle = known.early.pop((vhost.name, name), None) or self._relay(node, vhost.name, name)
        queue = vhost.add_volatile(name, _owner(node), handle)
        known.queues[vhost.name, name] = vhost, queue
        return queue

    def _deliver(self, body: bytes) -> None:
        vhost_name, name, command = REPLIES.decode(body)
        vhost = self._find_vhost(vhost_name)
        queue = None if vhost is None or (vhost_name, name) not in self._own else vhost.queues.get(name)
        if queue is not None and queue.kind is VOLATILE_KIND:
            queue.handle.post(command)


def _forget(known: _PeerReplyQueues, key: tuple[str, str]) -> None:
    found = known.queues.pop(key, None)
    if found is not None:
        vhost, queue = found
        vhost.remove_volatile(queue)
        queue.handle.post(DELETE)


def _owner(node: int) -> Owner:
    return Owner(node, 0, 0)
