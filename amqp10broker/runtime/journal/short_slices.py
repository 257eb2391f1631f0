"""Running soon after a wait where the processors are busy.

A confirm waits until the helper that syncs has run, and then the broker again. Linux lets either wait until
the slice of whoever runs is over, some milliseconds. Since Linux 6.12 a process may ask for short slices, and
then runs sooner when it wakes; its share of a processor is as before.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Final

SLICE_NS: Final = 100_000

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}


class _Attributes(ctypes.Structure):
    """`struct sched_attr` of Linux, in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def ask_for_short_slices() -> None:
    """Request short slices for this thread and its children, where supported.

    Priority and policy stay: a policy that an operator has set keeps its slices.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        number = _SCHED_SETATTR.get(platform.machine())
        if number is not None:
            attributes = _Attributes(
                size=ctypes.sizeof(_Attributes),
                policy=os.SCHED_OTHER,
                nice=os.getpriority(os.PRIO_PROCESS, 0),
                runtime=SLICE_NS,
            )
            ctypes.CDLL(None).syscall(
                ctypes.c_long(number), ctypes.c_int(0), ctypes.byref(attributes), ctypes.c_uint(0)
            )
