"""A broker as a process: until a signal, and then stopped in order."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import AsyncIterator, Callable
from typing import Final

import trio

from amqp10broker import portable
from amqp10broker.config import Config
from amqp10broker.errors import Stopped
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.broker")


async def run_broker(config: Config, on_up: Callable[[Broker], None]) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop it in order. One that joins a cluster begins again.
    `on_up`: called with the broker each time that it accepts connections. Raises `OSError` if the address
    cannot be used, `AdminSocketError` if the place of the admin socket is unsafe, and `StorageError` if the
    data folder cannot be used, or not any more.
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


SLICE_NS: Final = 100_000

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}


_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr` of Linux: size, policy, flags, nice, priority, runtime, deadline, period."""


def ask_for_short_slices() -> None:
    """Request short slices for this thread and its children, where supported (Linux 6.12).

    A confirm waits until the helper that syncs has run, and then the broker again, and each until the slice
    of another process is over, some milliseconds. With short slices they run sooner when they wake; their
    share of a processor is as before. Priority and policy stay: a policy that an operator has set keeps its
    slices.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        number = _SCHED_SETATTR.get(platform.machine())
        if number is not None:
            nice = os.getpriority(os.PRIO_PROCESS, 0)
            attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
            ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_int(0), attributes, ctypes.c_uint(0))
