"""Run the whole data pipeline on this machine, as `make spark-demo` does.

    python examples/spark_demo.py [--folder FOLDER] [--count N] [--short]

The program prints each command and runs it. It starts a broker on a free port, fills a stream, writes the
stream to Parquet with a Spark query (spark_stream.py), records a sweep over credits and windows, and makes
a report on the recording. All programs listen on 127.0.0.1 only. It takes about three minutes.

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
# The parts of its folder that a run writes and the next run removes.
PARTS = ("stream", "recording", "sweep", "report")


class StepFailed(Exception):
    """A command failed and has printed the cause."""


def main():
    parser = argparse.ArgumentParser(description="Run the whole data pipeline on this machine.")
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
        print("\ninterrupted; the finished parts are in", folder, file=sys.stderr)
        return 130
    print(f"\nDone in {time.monotonic() - started:.0f} s. Open the report in a browser:")
    print(folder / "report" / "report.html")
    return 0


def stream_to_parquet(folder, count):
    """Start a broker, fill a stream, read it with a query, and stop the broker."""
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
    """Load a separate broker with each combination of settings, and record the flow events."""
    step("4. A sweep over max_link_credit and max_incoming_window, recorded")
    credits_, windows, repetitions = ("10 170", "400", 2) if short else ("10 50 170 1000", "50 400", 3)
    run(
        *("-m", "benchmarks", "sweep", "--quick", "--repetitions", str(repetitions)),
        *("--sweep-credits", *credits_.split(), "--sweep-windows", *windows.split()),
        *("--record", str(folder / "recording"), "--results", str(folder / "sweep")),
    )


def report(folder):
    """Analyse the recording with Spark and recommend settings."""
    step("5. The report on the recording")
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
    """Run Python with these arguments and print its output, or a progress line while there is none."""
    command = [sys.executable, *arguments]
    print("$", shlex.join(["python", *arguments]), flush=True)
    # It runs in the repository's root because the benchmarks are not part of the installed package.
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=EXAMPLES.parent, **pipes) as process:
        try:
            pass_on(process)
            code = process.wait()
        except KeyboardInterrupt:
            # The process was interrupted too, and has to stop its own processes.
            wait_for_end(process)
            raise
    if code:
        raise StepFailed(f"this command ended with {code}: {shlex.join(command)}")


def pass_on(process):
    """Print the output of a process until its end, and a line after each SILENT_S without output."""
    pipe = process.stdout.fileno()
    began = time.monotonic()
    while True:
        readable, _, _ = select.select([pipe], [], [], SILENT_S)
        if not readable:
            if process.poll() is not None:
                return  # a child of the process still has the pipe
            print(f"... running for {time.monotonic() - began:.0f} s", flush=True)
        elif data := os.read(pipe, 65536):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            return


def wait_for_end(process):
    """Wait for the end of a process that was signalled to stop."""
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def broker(place):
    """Start a broker on a free port, wait until it listens, and stop it at the end of the block."""
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
    # In its own session the broker does not get Ctrl-C; this program stops it after its clients.
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
    """Wait until the log reports that the broker listens, and return its port."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            entry = json.loads(line) if line.endswith("}") else {}
            if entry.get("event") == "listening":
                print("the broker listens on", entry["addresses"], flush=True)
                return int(entry["addresses"].partition(",")[0].rpartition(":")[2])
        time.sleep(0.05)
    raise StepFailed(f"the broker did not start:\n{log.read_text()}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
