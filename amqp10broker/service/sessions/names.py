"""Names of links: part 2, section 2.6.1. A name that is attached again is taken over.

A link is known by its name, its direction and the two containers, and one link has one pair of
ends. So an attach of a name that is attached already moves the link: the end that was attached before
is detached with `amqp:link:stolen`. How far that reaches: docs/adr/0027.
"""

from __future__ import annotations

from collections.abc import Callable

from amqp10broker.amqp10.link import ReceiverLink, SenderLink

Key = tuple[str, bool]
TellStolen = Callable[[SenderLink | ReceiverLink], object]
"""Tells a session that another one has attached the name of a link here: one object a session."""


class LinkNames:
    """Which links of one connection have which names, over all its sessions."""

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[Key, tuple[SenderLink | ReceiverLink, TellStolen]] = {}

    def take(
        self, link: SenderLink | ReceiverLink, tell_stolen: TellStolen
    ) -> SenderLink | ReceiverLink | None:
        """A link has its name from now on; if another session has a link of that name, it is told.

        Args:
            link: about to be attached.
            tell_stolen: of its session.

        Returns:
            The link of this session that had the name by now: detach it.
        """
        key = _key(link)
        stolen, holder = self._holders.get(key, (None, tell_stolen))
        self._holders[key] = link, tell_stolen
        if stolen is not None and holder is not tell_stolen:
            holder(stolen)
            return None
        return stolen

    def has(self, name: str) -> bool:
        """Whether a link of this name, by which its client consumes, is attached."""
        return (name, True) in self._holders

    def leave(self, link: SenderLink | ReceiverLink) -> None:
        """A link is gone: its name is free, unless another has taken it over."""
        key = _key(link)
        holder = self._holders.get(key)
        if holder is not None and holder[0] is link:
            del self._holders[key]


def _key(link: SenderLink | ReceiverLink) -> Key:
    return link.name, isinstance(link, SenderLink)
