"""Faults that a test can inject into its broker: context managers that are undone at the end of their blocks.

Within a virtual host a fault applies to all clients, or only to a queue (or the address of links), a client
(its container-id or connection name) or a link, each a name with ``*`` and ``?`` as wildcards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from amqp10broker.dataclass import dataclass

_FOUND_S: Final = 5.0
_LOOK_S: Final = 0.005


@dataclass(slots=True)
class ActiveFault:
    """A fault that is active within its block; `number` is for `ask("lift-fault")`."""

    number: int
    _ask: Callable[..., Any]
    _lifted: dict[str, Any] | None = None

    @property
    def view(self) -> dict[str, Any]:
        """The entry in `list-faults`; after the fault is lifted, its last state."""
        if self._lifted is not None:
            return self._lifted
        found: dict[str, Any] = next(
            each for each in self._ask("list-faults") if each["fault"] == self.number
        )
        return found

    @property
    def hits(self) -> int:
        hits: int = self.view["hits"]
        return hits

    @property
    def held(self) -> int:
        """Number of messages, confirms and flows that the fault holds back."""
        held: int = self.view["held"]
        return held

    def lift(self) -> None:
        """End the fault, and release everything it holds back."""
        if self._lifted is None:
            self._lifted = self._ask("lift-fault", fault=self.number)


class VhostFaults:
    """The faults of one virtual host, with the options `queue`, `client` and `link` as described in this
    module.
    """

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    @contextmanager
    def inject(self, kind: str, **options: Any) -> Iterator[ActiveFault]:
        """Inject any fault of the operation ``inject-fault``, with its arguments."""
        fault = ActiveFault(self._ask("inject-fault", kind=kind, **options)["fault"], self._ask)
        try:
            yield fault
        finally:
            fault.lift()

    def reject_publishes(self, count: int | None = None, **targets: Any) -> Any:
        """Reject the next `count` messages, or all: basic.nack to clients of AMQP 0-9-1."""
        return self.inject("reject-publishes", count=count, **targets)

    def hold_confirms(self, count: int | None = None, **targets: Any) -> Any:
        """Hold back the outcomes of the next `count` messages, or all, until the fault is lifted."""
        return self.inject("hold-confirms", count=count, **targets)

    def redeliver(self, count: int | None = None, **targets: Any) -> Any:
        """Lose the accepts of the next `count` messages, or all, so that they are delivered again."""
        return self.inject("redeliver", count=count, **targets)

    def pause_queue(self, queue: str = "*", **targets: Any) -> Any:
        """Suspend commands of clients to queues until the fault is lifted, as during a leader election."""
        return self.inject("pause-queue", queue=queue, **targets)

    def limit_credit(self, count: int = 0, **targets: Any) -> Any:
        """Limit the grants of each publishing link to `count` messages from its next grant on."""
        return self.inject("limit-credit", count=count, **targets)

    def hold_bytes(self, **targets: Any) -> Any:
        """Read from and write to connections nothing, as on a network without connectivity; only `client` is
        supported.
        """
        return self.inject("hold-bytes", **targets)

    def reset_after(self, frames: int = 1, **targets: Any) -> Any:
        """Reset connections after this many more frames to them; only `client` is supported."""
        return self.inject("reset-after", count=frames, **targets)

    def refuse_attaches(
        self, count: int | None = None, condition: str = "amqp:unauthorized-access", **targets: Any
    ) -> Any:
        """Refuse the next `count` attaches, or all, with a condition."""
        return self.inject("refuse-attaches", count=count, condition=condition, **targets)

    @contextmanager
    def alarm(self, name: str = "memory") -> Iterator[None]:
        """Raise the alarm of ``memory`` or ``disk``, which blocks publishers.

        Clients of AMQP 0-9-1 get connection.blocked, then unblocked; those of 1.0 have no window. It applies
        to all clients of the broker, not to those of the virtual host alone.
        """
        self._ask("alarm", name=name, on=True)
        try:
            yield
        finally:
            self._ask("alarm", name=name, on=False)

    def detach(self, condition: str = "amqp:link:detach-forced", **targets: Any) -> int:
        """Detach links with a condition, cancel consumers of AMQP 0-9-1, and return their number. Raises
        `AssertionError` if there were none.
        """
        return self._once("detach", condition=condition, **targets)

    def end(self, condition: str = "amqp:internal-error", code: int = 406, **targets: Any) -> int:
        """End sessions with a condition, and channels with a code; like `detach`."""
        return self._once("end", condition=condition, code=code, **targets)

    def close(self, condition: str = "amqp:connection:forced", code: int = 320, **targets: Any) -> int:
        """Close connections with a condition or a code; like `detach`."""
        return self._once("close", condition=condition, code=code, **targets)

    def _once(self, kind: str, **options: Any) -> int:
        __tracebackhide__ = True
        with self.inject(kind, **options) as fault:
            deadline = time.monotonic() + _FOUND_S
            while fault.held or not fault.hits:
                assert time.monotonic() < deadline, f"{kind}: no client is there that it is for: {options}"
                time.sleep(_LOOK_S)
        return fault.hits
