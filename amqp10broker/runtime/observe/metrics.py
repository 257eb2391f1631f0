"""Metrics of the running broker: gathered and written in turns that leave others theirs."""

from __future__ import annotations

from time import perf_counter
from typing import Final

import trio

from amqp10broker.observe.metrics.exposition import CLIENT_VERSION, scrape
from amqp10broker.observe.metrics.wanted import ScrapeRequest
from amqp10broker.runtime.admin.node import Administered
from amqp10broker.runtime.observe.metrics_source import source_of

TURN_S: Final = 0.004
"""A turn is over after the step in which so much time has passed."""


async def text_of(broker: Administered, wanted: ScrapeRequest) -> bytes:
    """Return the response to a scrape."""
    pieces: list[bytes] = []
    began = perf_counter()
    for piece in scrape(await source_of(broker, CLIENT_VERSION), wanted):
        pieces.append(piece)
        if perf_counter() - began > TURN_S:
            await trio.lowlevel.checkpoint()
            began = perf_counter()
    return b"".join(pieces)
