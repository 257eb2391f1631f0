"""What a member refuses::

RaftError
|-- NotLeader        ask the leader, if one is known
|-- NotReady         it leads, and takes nothing now: try again
|-- Full             too much is waiting to be committed: try again when something is
`-- ChangeRefused    a change of members, or a transfer, that cannot be begun now, or at all
"""

from __future__ import annotations

from amqp10broker.errors import BrokerError


class RaftError(BrokerError):
    """Any error of this room that is not a fault in its own code."""


class NotLeader(RaftError):
    """Another member leads, or none. `leader`: the member to ask; None if none is known."""

    def __init__(self, leader: int | None) -> None:
        super().__init__(
            "this member does not lead; " + (f"ask member {leader}" if leader else "none is known")
        )
        self.leader = leader


class NotReady(RaftError):
    """This member leads, and accepts no proposals for the moment; the message gives the reason."""


class Full(RaftError):
    """Uncommitted proposals have reached their bound; grant no credit until some are committed."""


class ChangeRefused(RaftError):
    """A change of members or a transfer cannot begin; the message gives the reason."""
