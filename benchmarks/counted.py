"""A broker's command line in a process that counts the bytecodes it carries out, for `versus --bytecodes`.

``python benchmarks/counted.py FILE serve ...`` runs the broker of the current folder. The first eight bytes
of FILE hold the count of the main thread since SIGUSR1 came, in the machine's order of bytes. Other threads,
the collector and what is written in C are not counted.
"""

from __future__ import annotations

import mmap
import os
import runpy
import signal
import sys
from ctypes import c_uint64
from pathlib import Path
from types import FrameType
from typing import Any, Final

_TOTAL_BYTES: Final = 8


def read_count(file: Path) -> int:
    """Return the bytecodes counted so far by the process that writes to the file."""
    return int.from_bytes(file.read_bytes()[:_TOTAL_BYTES], sys.byteorder)


def main() -> None:
    """Run the command line with the counter in place."""
    file, *arguments = sys.argv[1:]
    sys.path[0] = os.getcwd()
    Path(file).write_bytes(bytes(_TOTAL_BYTES))
    with open(file, "r+b") as opened:
        total = c_uint64.from_buffer(mmap.mmap(opened.fileno(), _TOTAL_BYTES))

    def opcode(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            total.value += 1
        return opcode

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return opcode

    sys.argv = ["amqp10broker", *arguments]
    signal.signal(signal.SIGUSR1, lambda *_: sys.settrace(call))
    runpy.run_module("amqp10broker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
