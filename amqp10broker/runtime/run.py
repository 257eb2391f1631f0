"""A broker as a process: until a signal, and then stopped in order."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable

import trio

from amqp10broker import portable
from amqp10broker.config import Config
from amqp10broker.errors import Stopped
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.journal.short_slices import ask_for_short_slices
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.broker")


async def run_broker(config: Config, on_up: Callable[[Broker], None]) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop it in order. One that joins a cluster begins again.

    Args:
        on_up: called with the broker each time that it accepts connections.

    Raises:
        OSError: the address cannot be used.
        AdminSocketError: the place of the admin socket is unsafe.
        StorageError: the data folder cannot be used, or not any more.
    """
    ask_for_short_slices()
    with trio.open_signal_receiver(*portable.STOP_SIGNALS) as signals:
        again = True
        while again:
            broker = Broker(config)
            again = False
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_stop_on_signal, signals, broker)
                    async with broker:
                        if not broker.over.is_set():
                            on_up(broker)
                        await broker.over.wait()
                    nursery.cancel_scope.cancel()
            except* Stopped as stopped:
                _log.info("not up", reason=str(stopped.exceptions[0]))
            if broker.afterwards is not None:
                assert config.data_dir is not None, "a node of a cluster has one"
                broker.afterwards.carry_out(config.data_dir)
                again = broker.afterwards.membership is not None


async def _stop_on_signal(signals: AsyncIterator[int], broker: Broker) -> None:
    async for number in signals:
        _log.info("stopping", signal=signal.Signals(number).name)
        broker.stop()
        return
