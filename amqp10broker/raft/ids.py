"""Numbers of groups and members.

The group of a queue has the queue's number in the catalog; the system group is number 0. A node has a number
from 1 to 2**32 - 1 that is never assigned again. A member's id contains its node and a serial, so that late
messages of a removed member do not concern its successor.
"""

from __future__ import annotations

from typing import Final

SYSTEM_GROUP: Final = 0

NODE_MAX: Final = 2**32 - 1


def member_id(node: int, serial: int = 0) -> int:
    """Return the id of a member. `serial`: distinguishes the members that a node has had in a group. It is 0
    for the members with which the group began. A member that was added has another one: it begins empty, and
    gets the state from the leader.
    """
    return node << 32 | serial


def is_first(member: int) -> bool:
    return not member & NODE_MAX


def node_of(member: int) -> int:
    return member >> 32
