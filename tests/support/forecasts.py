"""Forecasts of all that is known of a recording."""

from __future__ import annotations

from amqp10broker.tools.replay.forecast import Forecast, Settings, known
from amqp10broker.tools.replay.player import Script


def forecasts(script: Script, asked: Settings) -> tuple[list[Forecast], list[str]]:
    """Return a forecast for each publisher and consumer, and sentences on those without one."""
    found, without = known(script)
    return [forecast for each in found for forecast in each.forecasts(asked)], without
