"""The contents and the format that a scrape requests."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.patterns import PatternSearch
from amqp10broker.observe.metrics.table import GROUPS, Group

PLAIN_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# A client must accept one of these.
TYPES: Final = ("text/plain", "text/*", "*/*", "application/openmetrics-text", "application/*")


class Form(StrEnum):
    """The form of a scrape; the value is the label ``rabbitmq_endpoint``."""

    AGGREGATED = "aggregated"
    PER_OBJECT = "per-object"
    DETAILED = "detailed"
    MEMORY = "memory-breakdown"


@dataclass(frozen=True, slots=True)
class ScrapeRequest:
    """A parsed request. `vhosts`: queues of these count; None: all. `queue`: searched in the names of queues;
    None: all count.
    """

    form: Form
    groups: tuple[Group, ...]
    vhosts: frozenset[str] | None = None
    queue: PatternSearch | None = None
    openmetrics: bool = False

    @property
    def content_type(self) -> str:
        return OPENMETRICS_TYPE if self.openmetrics else PLAIN_TYPE

    def takes_queue(self, vhost: str, name: str) -> bool:
        """Return whether a queue counts. Raises `InvalidArgument` if the search in the names of all queues
        takes too long.
        """
        if self.vhosts is not None and vhost not in self.vhosts:
            return False
        return self.queue is None or self.queue(name)


def wanted(
    form: Form,
    *,
    families: Iterable[str] = (),
    vhosts: Iterable[str] = (),
    queue: str | None = None,
    accept: str | None = None,
) -> ScrapeRequest:
    """Parse a request. `families`: names of groups, of the detailed form; unknown ones are ignored, as in
    RabbitMQ. Raises `InvalidArgument` if the expression is invalid, or cannot be searched for in bounded
    time.
    """
    openmetrics = "application/openmetrics-text" in (accept or "")
    if form in (Form.AGGREGATED, Form.MEMORY):
        return ScrapeRequest(form, (), openmetrics=openmetrics)
    if form is Form.PER_OBJECT:
        groups = tuple(group for group in GROUPS.values() if group.per_object)
        return ScrapeRequest(form, groups, openmetrics=openmetrics)
    asked = tuple(GROUPS[name] for name in dict.fromkeys(families) if name in GROUPS)
    found_in = None if queue is None else PatternSearch(queue, "queue")
    return ScrapeRequest(form, asked, frozenset(vhosts) or None, found_in, openmetrics)
