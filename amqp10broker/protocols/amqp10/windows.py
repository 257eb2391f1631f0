"""Session windows: part 2, section 2.5.6. Flow control by transfer frames, below link credit.

A window counts frames, not messages: a message cut into five frames uses five. Each side has both directions,
because a session is bidirectional while a link is not.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.protocols.amqp10.errors import AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.performatives import Flow
from amqp10broker.protocols.serial import MASK, diff, limit_left

# "The outgoing-window ... MAY (depending on policy) be decremented" (2.5.6): how many transfers we
# send is decided by credit and by the peer's window, so our own is left at the largest value.
OUTGOING_WINDOW: Final = 0xFFFF_FFFF

INITIAL_OUTGOING_ID: Final = 0


class IncomingWindow:
    """How many transfer frames the peer may send us.

    The window is opened to its full size again when half of it is used. While it is held closed (an alarm), a
    margin of frames that were already on their way is tolerated.

    Attributes:
        next_incoming_id: transfer-id expected next; None until the peer's begin arrived.
        flow_due: the window was re-opened or closed and the peer has not been notified.
    """

    __slots__ = ("_margin", "closed", "flow_due", "left", "next_incoming_id", "size")

    def __init__(self, size: int, *, closed: bool = False) -> None:
        self.next_incoming_id: int | None = None
        self.size = size
        self.closed = closed
        self.left = 0 if closed else size
        self._margin = size if closed else 0
        self.flow_due = False

    @property
    def advertised(self) -> int:
        return self.left if self.left > 0 else 0

    def allowance(self) -> int:
        """Return how many frames may still come without a violation, or -1 for no limit.

        An open window is re-opened at half while frames are counted one after the other, so that only a
        window held closed can be violated.
        """
        return max(0, self.left + self._margin) if self.closed else -1

    def count(self, frames: int) -> int | None:
        """Count frames in; return None when all fit, else how many did before the window was violated."""
        violation = None
        if self.closed and frames > self.allowance():
            frames = violation = self.allowance()
        if self.next_incoming_id is not None:
            self.next_incoming_id = (self.next_incoming_id + frames) & MASK
        if self.closed:
            self.left -= frames
            return violation
        half = self.size // 2
        left = self.left - frames
        if left <= half:
            # As if counted one by one: full again at the half-way mark, then repeatedly.
            past_mark = frames - max(1, self.left - half)
            left = self.size - past_mark % (self.size - half)
            self.flow_due = True
        self.left = left
        return None

    def violation(self) -> AmqpSessionError:
        """Return the error for one frame more than `allowance`."""
        return AmqpSessionError(
            Condition.WINDOW_VIOLATION,
            f"incoming window violation (tolerated excess transfers: {self._margin})",
        )

    def close(self) -> None:
        """Hold the window closed from now on; frames already sent to us are tolerated."""
        if not self.closed:
            self.closed = True
            # Frames granted under a larger size may be on their way as well.
            self._margin = max(self.size, self.left)
            self.left = 0
            self.flow_due = True

    def reopen(self) -> None:
        if self.closed:
            self.closed = False
            self._margin = 0
            self.left = self.size
            self.flow_due = True

    def resize(self, size: int) -> None:
        """Set the size of later re-openings; re-open at once if the new rule requires it."""
        self.size = size
        if not self.closed and self.left <= size // 2:
            self.left = size
            self.flow_due = True


class OutgoingWindow:
    """How many transfer frames we may send. `remote_outgoing_window`: frames the peer may still send by its
    own statement; shown, never enforced.
    """

    __slots__ = (
        "initial_outgoing_id",
        "next_outgoing_id",
        "remote_incoming_window",
        "remote_outgoing_window",
    )

    def __init__(self, next_outgoing_id: int = INITIAL_OUTGOING_ID) -> None:
        self.initial_outgoing_id = next_outgoing_id
        self.next_outgoing_id = next_outgoing_id
        self.remote_incoming_window = 0
        self.remote_outgoing_window = 0

    def spend(self, frames: int) -> None:
        assert frames <= self.remote_incoming_window, "a transfer outside the peer's window"
        self.next_outgoing_id = (self.next_outgoing_id + frames) & MASK
        self.remote_incoming_window -= frames

    def update(self, flow: Flow) -> None:
        """Apply the session fields of a flow. Raises `AmqpSessionError` if they count unsent frames."""
        base = flow.next_incoming_id
        if base is None:  # the peer had not seen our begin when it sent this (2.5.6)
            base = self.initial_outgoing_id
        elif diff(base, self.next_outgoing_id) > 0:
            raise AmqpSessionError(
                Condition.WINDOW_VIOLATION,
                f"next-incoming-id from FLOW ({base}) leads next-outgoing-id ({self.next_outgoing_id})",
            )
        self.remote_incoming_window = limit_left(base, flow.incoming_window, self.next_outgoing_id)
        self.remote_outgoing_window = flow.outgoing_window
