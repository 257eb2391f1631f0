"""The states of a session end and their transition table: part 2, section 2.5.5."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class SessionState(Enum):
    """The states of section 2.5.5."""

    UNMAPPED = auto()
    BEGIN_SENT = auto()
    BEGIN_RECEIVED = auto()
    MAPPED = auto()
    END_SENT = auto()
    END_RECEIVED = auto()
    DISCARDING = auto()
    """We ended with an error; everything but the peer's end is discarded."""


class SessionInput(Enum):
    """The inputs of a session end's state machine."""

    SEND_BEGIN = auto()
    RECEIVE_BEGIN = auto()
    SEND_END = auto()
    SEND_END_ERROR = auto()
    RECEIVE_END = auto()


# Section 2.5.5. A pair that is absent is refused. The role that begins first is not in the table.
SESSION_TRANSITIONS: Final[dict[tuple[SessionState, SessionInput], SessionState]] = {
    (SessionState.UNMAPPED, SessionInput.SEND_BEGIN): SessionState.BEGIN_SENT,
    (SessionState.UNMAPPED, SessionInput.RECEIVE_BEGIN): SessionState.BEGIN_RECEIVED,
    (SessionState.BEGIN_SENT, SessionInput.RECEIVE_BEGIN): SessionState.MAPPED,
    (SessionState.BEGIN_RECEIVED, SessionInput.SEND_BEGIN): SessionState.MAPPED,
    (SessionState.MAPPED, SessionInput.SEND_END): SessionState.END_SENT,
    (SessionState.MAPPED, SessionInput.SEND_END_ERROR): SessionState.DISCARDING,
    (SessionState.MAPPED, SessionInput.RECEIVE_END): SessionState.END_RECEIVED,
    (SessionState.END_RECEIVED, SessionInput.SEND_END): SessionState.UNMAPPED,
    (SessionState.END_SENT, SessionInput.RECEIVE_END): SessionState.UNMAPPED,
    (SessionState.DISCARDING, SessionInput.RECEIVE_END): SessionState.UNMAPPED,
}
