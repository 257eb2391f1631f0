"""Bytes kept of what clients have begun and not finished, bounded by connection, user and node."""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from amqp10broker.protocols.amqp10.errors import AmqpSessionError, Condition


class Budget:
    """Bytes that may be held at a time, within a larger budget if there is one."""

    __slots__ = ("__weakref__", "bytes_max", "held_bytes", "whose", "within")

    def __init__(self, bytes_max: int, whose: str, within: Budget | None = None) -> None:
        self.held_bytes = 0
        self.bytes_max = bytes_max
        self.whose = whose
        self.within = within

    def take(self, size: int) -> Budget | None:
        """Hold so many bytes more; or return the budget that has not so many left, and hold none."""
        if self.held_bytes + size > self.bytes_max:
            return self
        if self.within is not None and (short := self.within.take(size)) is not None:
            return short
        self.held_bytes += size
        return None

    def give_back(self, size: int) -> None:
        self.held_bytes -= size
        if self.within is not None:
            self.within.give_back(size)

    def leave(self) -> None:
        """Whoever holds these bytes is gone, and the larger budget has all of them back."""
        if self.within is not None:
            self.within.give_back(self.held_bytes)
            self.within = None


class UserBudgets:
    """Of one node: no user has more than half of it.

    A message of the largest size fits always, with what its frames cost.
    """

    def __init__(self, node_bytes_max: int, message_bytes_max: int) -> None:
        self._user_bytes_max = max(node_bytes_max // 2, 2 * message_bytes_max)
        self._node = Budget(max(node_bytes_max, self._user_bytes_max), "on this node")
        # Of users who have a connection: it holds its user's.
        self._by_user: WeakValueDictionary[str, Budget] = WeakValueDictionary()

    def of(self, user: str) -> Budget:
        found = self._by_user.get(user)
        if found is None:
            found = Budget(self._user_bytes_max, f"for user '{user}' on this node", self._node)
            self._by_user[user] = found
        return found


# Credit counts deliveries and the window counts frames, and neither counts bytes: without this a client could
# have begun a message of the largest size on each of its links.

FRAME_BYTES: Final = 64
"""The overhead of a stored frame beside its payload, so that empty ones are counted, too."""

NO_LIMIT: Final = 2**63


class Unfinished(Budget):
    """The bound of one connection, shared by its sessions: stored payloads, and `FRAME_BYTES` for each."""

    __slots__ = ()

    def __init__(self, bytes_max: int = NO_LIMIT) -> None:
        super().__init__(bytes_max, "on this connection")

    def keep(self, payload_bytes: int) -> int:
        """Count one more frame that is stored; return the size to release later. Raises `AmqpSessionError`
        if it is too much: the session must be ended, which frees the parts of its links.
        """
        held = payload_bytes + FRAME_BYTES
        if (short := self.take(held)) is not None:
            raise AmqpSessionError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                "deliveries that are not whole, and frames for links that are not attached yet, hold more "
                f"than {short.bytes_max} bytes {short.whose}: finish or abort some before you begin others",
            )
        return held
