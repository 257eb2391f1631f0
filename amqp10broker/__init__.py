"""A broker for AMQP 1.0 and AMQP 0-9-1 on Trio.

The public names are `Broker`, `Config` and `__version__`. The first two are loaded when they are
first used, so that the command line starts without Trio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp10broker.config import Config as Config
    from amqp10broker.runtime.broker import Broker as Broker

__version__ = "0.1.0"
__all__ = ["Broker", "Config", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Broker":
        from amqp10broker.runtime.broker import Broker

        return Broker
    if name == "Config":
        from amqp10broker.config import Config

        return Config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
