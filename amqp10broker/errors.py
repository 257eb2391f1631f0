"""Errors that are independent of protocols.

Each message is for the person who can correct the cause: it names the refused item and the remedy. A protocol
room translates errors that a peer can cause into its own conditions (`NotFound` is ``amqp:not-found`` in AMQP
1.0).
"""

from __future__ import annotations

from collections.abc import Iterable


class BrokerError(Exception):
    """Any error of amqp10broker except errors in its own code."""


class ConfigError(BrokerError):
    """A setting cannot be used; nothing was started or changed.

    Args:
        source: where the value came from: ``broker.toml: max_link_credit``,
            ``variable AMQP10BROKER_PORT``, ``flag --port``, or ``Config.port`` if a program gave it.
        problem: the given value, as a clause: "is 0".
        allowed: the accepted values, as a clause: "must be an integer from 1 to 4294967295".
    """

    def __init__(self, source: str, problem: str, allowed: str) -> None:
        super().__init__(f"{source} {problem}; {allowed}")
        self.source = source
        self.problem = problem
        self.allowed = allowed


class PeerUnreachable(BrokerError):
    """Another node of the cluster does not answer, or not in time; the message names it."""


class Stopped(BrokerError):
    """The node was stopped before it was in a cluster."""


class AdminSocketError(BrokerError):
    """The local administration socket cannot be used; the message describes the remedy."""


class StorageError(BrokerError):
    """A file or folder of the data folder cannot be used. `offset`: bytes from the start of the file, if a
    place in it is meant.
    """

    def __init__(self, path: str, problem: str, remedy: str, *, offset: int | None = None) -> None:
        place = "" if offset is None else f" at offset {offset}"
        super().__init__(f"{path}{place}: {problem}; {remedy}")
        self.path = path
        self.problem = problem
        self.remedy = remedy
        self.offset = offset


class DamagedFile(StorageError):
    """The file does not contain the data that was written to it; nothing was served or changed."""


class FolderInUse(StorageError):
    """Another process holds the data folder."""


class DiskFull(StorageError):
    """The disk has no room for a write. The data is retained, and the write can be tried again."""


class StorageFailed(StorageError):
    """A sync failed, or the helper that syncs has ended: written data may not be on the disk.

    The sync is never tried again, because the system may have dropped the pages that it could not write, and
    would then report success. The broker stops and recovers from its files.
    """


class RefusedError(BrokerError):
    """A client's request is refused and the broker's state is unchanged."""

    def __init__(self, resource: str, description: str) -> None:
        super().__init__(description)
        self.resource = resource
        self.description = description


class NotFound(RefusedError):
    """The resource does not exist."""


class AccessRefused(RefusedError):
    """The user may not do this to the resource."""


class PreconditionFailed(RefusedError):
    """The resource exists, but not as the request describes it, or the request contradicts itself."""


class ResourceLocked(RefusedError):
    """Another connection holds the resource exclusively."""


class LimitExceeded(RefusedError):
    """The request exceeds a limit of the configuration."""


class Inequivalent(PreconditionFailed):
    """The resource is declared already, and differs from the request."""


class InvalidArgument(PreconditionFailed):
    """An argument of the request is unknown, of a wrong type or out of range."""


class InUse(PreconditionFailed):
    """The queue or exchange is in use, or is not empty."""


class BadRequest(RefusedError):
    """The request itself is malformed: an invalid name, property or argument."""


class NotSupported(RefusedError):
    """This broker, or this kind of resource, does not support the request."""


class FeatureDenied(RefusedError):
    """The request uses a deprecated feature that is not permitted."""

    def __init__(self, resource: str, feature: str) -> None:
        text = (
            f"Feature `{feature}` is deprecated.\nIts use is not permitted: declare {resource} without it, "
            f"or start the broker with permit_{feature} = true"
        )
        super().__init__(resource, text)


class NotAllowed(RefusedError):
    """The request breaks a rule of the connection: the virtual host does not exist or is not the user's."""


class Unavailable(RefusedError):
    """A part that the request needs cannot be reached now: a leader, a majority, another node."""


class PermissionDenied(AccessRefused):
    """The user's permissions do not cover the request."""


class ReservedName(AccessRefused):
    """The name has a prefix that is reserved for the broker."""


def hint(name: str, known: Iterable[str]) -> str:
    """What may have been meant by a name that is none: ``did you mean port?``, or all there are."""
    names = list(known)
    close = closest(name, names)
    return f"did you mean {close}?" if close is not None else f"known are {', '.join(names)}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is like it, None if none is."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=0.7)), None)
