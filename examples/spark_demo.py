"""The data pipeline from end to end on this machine: `make spark-demo`.

    python examples/spark_demo.py [--folder FOLDER] [--count N] [--short]

Runs the commands that a person would type, and prints each: a broker on a free port, a stream that is
filled, a Spark query that writes it to Parquet (spark_stream.py), a sweep over credits and windows that is
recorded, and the report on the recording. Everything listens on 127.0.0.1 alone. About three minutes.

The results are in FOLDER (spark-demo); a later run replaces them.
"""

import argparse
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
STREAM = "demo"
MESSAGE = "x" * 100
START_S = 30
STOP_S = 20
SILENT_S = 6
# What a run writes into its folder, and what the next run removes from it.
PARTS = ("stream", "recording", "sweep", "report")


class StepFailed(Exception):
    """A command failed; it has said why."""


def main():
    parser = argparse.ArgumentParser(description="The data pipeline from end to end on this machine.")
    parser.add_argument("--folder", type=Path, default=Path("spark-demo"), help="for results (%(default)s)")
    parser.add_argument("--count", type=int, default=500_000, help="messages in the stream (%(default)s)")
    parser.add_argument("--short", action="store_true", help="a sweep of two settings instead of eight")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        shutil.rmtree(folder / part, ignore_errors=True)
    started = time.monotonic()
    try:
        stream_to_parquet(folder, arguments.count)
        sweep(folder, short=arguments.short)
        report(folder)
    except StepFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; what is finished stands in", folder, file=sys.stderr)
        return 130
    print(f"\nDone in {time.monotonic() - started:.0f} s. Open the report in a browser:")
    print(folder / "report" / "report.html")
    return 0


def stream_to_parquet(folder, count):
    """A broker, a stream, and the query that reads it; the broker is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="amqp10broker-demo-") as place:
        step("1. A broker with a data folder, on a free port")
        with broker(Path(place)) as port:
            step(f"2. A stream of {count} messages of {len(MESSAGE)} bytes")
            socket = f"{place}/admin.sock"
            run(
                "-m", "amqp10broker", *f"queue declare {STREAM} --type stream --admin-socket {socket}".split()
            )
            filling = f"publish --queue {STREAM} --port {port} --count {count} {MESSAGE}"
            run("-m", "amqp10broker", *filling.split())
            step("3. A streaming query into Parquet")
            url = f"amqp://guest:guest@127.0.0.1:{port}"
            run(str(EXAMPLES / "spark_stream.py"), url, STREAM, str(folder / "stream"))


def sweep(folder, *, short):
    """Loads a broker of its own with each combination, and records the flow events."""
    step("4. A sweep over max_link_credit and max_incoming_window, recorded")
    credits_, windows, repetitions = ("10 170", "400", 2) if short else ("10 50 170 1000", "50 400", 3)
    run(
        *("-m", "benchmarks", "sweep", "--quick", "--repetitions", str(repetitions)),
        *("--sweep-credits", *credits_.split(), "--sweep-windows", *windows.split()),
        *("--record", str(folder / "recording"), "--results", str(folder / "sweep")),
    )


def report(folder):
    """Spark computes what the recording says, and which settings to choose."""
    step("5. What the recording says")
    run(
        "-m",
        "amqp10broker",
        "record",
        "analyse",
        str(folder / "recording"),
        "--output",
        str(folder / "report"),
    )


def step(title):
    print(f"\n=== {title}", flush=True)


def run(*arguments):
    """Run Python with these arguments; what it prints is seen, and a sign of life while it prints nothing."""
    command = [sys.executable, *arguments]
    print("$", shlex.join(["python", *arguments]), flush=True)
    # From the repository's root: the benchmarks are no part of the installed package.
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=EXAMPLES.parent, **pipes) as process:
        try:
            pass_on(process)
            code = process.wait()
        except KeyboardInterrupt:
            # It was interrupted too, and has processes of its own to end.
            wait_for_end(process)
            raise
    if code:
        raise StepFailed(f"this command ended with {code}: {shlex.join(command)}")


def pass_on(process):
    """Print what a process prints until its end, and a line whenever nothing has come for SILENT_S."""
    pipe = process.stdout.fileno()
    began = time.monotonic()
    while True:
        readable, _, _ = select.select([pipe], [], [], SILENT_S)
        if not readable:
            if process.poll() is not None:
                return  # a process of its own has the pipe still
            print(f"... at work for {time.monotonic() - began:.0f} s", flush=True)
        elif data := os.read(pipe, 65536):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            return


def wait_for_end(process):
    """Wait for the end of a process that was told to end."""
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def broker(place):
    """Start a broker on a free port, wait until it listens, and stop it in order."""
    arguments = [
        "serve",
        "--port",
        "0",
        "--data-dir",
        f"{place}/data",
        "--admin-socket",
        f"{place}/admin.sock",
    ]
    command = [sys.executable, "-m", "amqp10broker", *arguments, "--log-format", "json"]
    print("$", shlex.join(["amqp10broker", *arguments]), flush=True)
    log = place / "log"
    # A session of its own: ctrl-C is for this program, which stops the broker when its clients are gone.
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=stderr, start_new_session=True, cwd=EXAMPLES.parent
        )
    try:
        yield port_of(process, log)
    finally:
        process.terminate()
        wait_for_end(process)


def port_of(process, log):
    """The port, once the log says that the broker listens."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            entry = json.loads(line) if line.endswith("}") else {}
            if entry.get("event") == "listening":
                print("it listens on", entry["addresses"], flush=True)
                return int(entry["addresses"].partition(",")[0].rpartition(":")[2])
        time.sleep(0.05)
    raise StepFailed(f"the broker did not start:\n{log.read_text()}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
