"""Names of links: part 2, section 2.6.1. An attach of a name that is attached already takes the link over.

A link is identified by its name, its direction and the two containers, and has one pair of ends. So the end
that was attached before is detached with `amqp:link:stolen`. The names of one connection are compared, over
all its sessions.
"""

from __future__ import annotations

from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.sessions.messages import LinkStolen, ToSession

Key = tuple[str, bool]


class LinkNames:
    """The names of the links of one connection, over all its sessions."""

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[Key, tuple[SenderLink | ReceiverLink, ToSession]] = {}

    def take(
        self, link: SenderLink | ReceiverLink, to_session: ToSession
    ) -> SenderLink | ReceiverLink | None:
        """Give a link its name; return the link of the same session that had it, for the caller to detach."""
        key = _key(link)
        stolen, holder = self._holders.get(key, (None, to_session))
        self._holders[key] = link, to_session
        if stolen is not None and holder is not to_session:
            holder(LinkStolen(stolen))
            return None
        return stolen

    def has(self, name: str) -> bool:
        return (name, True) in self._holders

    def leave(self, link: SenderLink | ReceiverLink) -> None:
        """Free the name of a link that is gone, unless another link has taken it over."""
        key = _key(link)
        holder = self._holders.get(key)
        if holder is not None and holder[0] is link:
            del self._holders[key]


def _key(link: SenderLink | ReceiverLink) -> Key:
    return link.name, isinstance(link, SenderLink)
