"""Print the size and shape of the project: lines, imports, names, language, and the ways of five requests.

``python .ci/house.py`` prints a table with each figure beside its aim. ``--check`` exits with 1 if a figure
that once met its aim no longer does. The ways are recorded in a running broker by `sys.setprofile`: they
need the packages of the tests (pika), and ``--no-ways`` leaves them out.

A *move* is a call of a function in another file of the package than that of the call before it.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tempfile
import threading
import time
import tokenize
import urllib.request
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "amqp10broker"
APART: Final = ("tools", "spark", "testing")
"""Folders of the package that the broker itself does not import."""
_QUIET_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. A figure is at its aim when it is not above it."""

    name: str
    value: int
    aim: int | None
    met: bool = False
    """Whether the aim has been met once, so that `--check` holds it."""


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a figure is worse than an aim it met"
    )
    parser.add_argument(
        "--no-ways", action="store_true", help="leave out the ways, which need a running broker"
    )
    arguments = parser.parse_args()
    figures = [*sizes(), *imports(), *names(), *language()]
    if not arguments.no_ways:
        figures += ways()
    for figure in figures:
        aim = (
            ""
            if figure.aim is None
            else f"{figure.aim:>9}" + ("" if figure.value <= figure.aim else "  missed")
        )
        print(f"{figure.name:<52} {figure.value:>8} {aim}")
    worse = [
        figure for figure in figures if figure.met and figure.aim is not None and figure.value > figure.aim
    ]
    if arguments.check and worse:
        print(
            "worse than an aim that was met: " + ", ".join(figure.name for figure in worse), file=sys.stderr
        )
        return 1
    return 0


def sizes() -> Iterator[Figure]:
    """Lines of the package by kind, of tests, and words of documents."""
    kinds: Counter[str] = Counter()
    apart = 0
    for path in sources():
        lines = lines_by_kind(path)
        kinds += lines
        apart += lines.total() if path.relative_to(PACKAGE).parts[0] in APART else 0
    yield Figure("package: lines", kinds.total(), 118_000, met=True)
    yield Figure("package: lines of the broker alone", kinds.total() - apart, 100_000, met=True)
    yield Figure("package: lines of code", kinds["code"], 85_000, met=True)
    for kind in ("docstring", "comment", "blank"):
        yield Figure(f"package: lines of {kind}", kinds[kind], None)
    yield Figure("package: files", len(sources()), None)
    yield Figure("tests: lines", sum(map(count_lines, (ROOT / "tests").rglob("*.py"))), 125_000)
    yield Figure("benchmarks: lines", sum(map(count_lines, (ROOT / "benchmarks").rglob("*.py"))), None)
    yield Figure(
        "docs: words", sum(len(path.read_text().split()) for path in (ROOT / "docs").rglob("*.md")), 80_000
    )
    yield Figure("docs: records of decisions", len(list((ROOT / "docs" / "adr").glob("*.md"))), 22, met=True)


def imports() -> Iterator[Figure]:
    """Rooms, the longest chain of imports, and circles of modules."""
    graph = import_graph()
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError:
        order = []
    depth: dict[str, int] = {}
    for module in order:
        depth[module] = 1 + max((depth[other] for other in graph.get(module, ())), default=0)
    rooms = [path for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))]
    yield Figure("imports: rooms", len(rooms), 22, met=True)
    yield Figure("imports: longest chain of modules", max(depth.values(), default=0), 29, met=True)
    yield Figure("imports: circles", 0 if order else 1, 0, met=True)


def names() -> Iterator[Figure]:
    """Classes that are protocols, and names of classes that several files use."""
    places: defaultdict[str, set[Path]] = defaultdict(set)
    classes = protocols = 0
    for path in sources():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                classes += 1
                places[node.name].add(path)
                protocols += any("Protocol" in ast.unparse(base) for base in node.bases)
    yield Figure("names: classes", classes, None)
    yield Figure("names: classes that are a Protocol", protocols, 49, met=True)
    yield Figure(
        "names: of classes, in several files", sum(len(files) > 1 for files in places.values()), 39, met=True
    )


_TALK: Final = re.compile(r"\b(tell|tells|told|hear|hears|heard|say|says|said|asks|asked|knows)\b")
_WHO: Final = re.compile(r"\b(who|whom|whose|whoever|nobody|somebody|everybody|anybody)\b")


def language() -> Iterator[Figure]:
    """Words in docstrings and comments that `CONTRIBUTING.md` asks to avoid."""
    texts: list[str] = []
    short = 0
    for path in sources():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    texts.append(text)
                    short += len(text.split()) <= 4
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    text = "\n".join(texts)
    yield Figure(
        "language: software that tells, hears, says, knows", len(_TALK.findall(text.lower())), 230, met=True
    )
    yield Figure("language: who, whose, nobody", len(_WHO.findall(text.lower())), 111, met=True)
    yield Figure("language: docstrings of at most four words", short, 77, met=True)
    yield Figure('language: "See X"', len(re.findall(r"\bSee [A-Z`]", text)), 31, met=True)
    yield Figure(
        'language: sentences that begin with "What"',
        len(re.findall(r"(?:^|[.:] )What\b", text, re.M)),
        102,
        met=True,
    )


def ways() -> Iterator[Figure]:
    """How far five requests go through the package, in calls, files, moves and stack depth."""
    memory = Path("/dev/shm")  # a sync that takes long adds steps to the ways with a confirm
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        _RunningBroker(Path(folder)) as broker,
    ):
        for name, before, request in (
            ("transfer to a consumer", 119, _consume),
            ("flow frame", 79, _flow),
            ("basic.publish with confirm", 78, _publish_091),
            ("HTTP PUT of a queue", 108, _put_queue),
            ("durable quorum publish", 168, _publish_quorum),
        ):
            way = request(broker)
            for kind, aim in (
                ("calls", None),
                ("files", 30 if request is _consume else None),
                ("moves between files", before),
                ("stack depth", None),
            ):
                yield Figure(f"way of {name}: {kind}", way[kind], aim, met=aim is not None)


def sources() -> list[Path]:
    """The Python files of the package."""
    return sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed source of a file."""
    return ast.parse(path.read_text(), str(path))


def count_lines(path: Path) -> int:
    """Lines of a text file."""
    return len(path.read_text().splitlines())


def lines_by_kind(path: Path) -> Counter[str]:
    """Lines of code, docstring, comment and blank lines of a Python file."""
    text = path.read_text()
    kinds = ["blank" if not line.strip() else "code" for line in text.splitlines()]
    for number, line in enumerate(text.splitlines()):
        if line.lstrip().startswith("#"):
            kinds[number] = "comment"
    for node in ast.walk(tree_of(path)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                for number in range(statement.lineno - 1, statement.end_lineno or statement.lineno):
                    kinds[number] = "docstring"
    return Counter(kinds)


def import_graph() -> Mapping[str, set[str]]:
    """Modules of the package, and which of them each imports while it is loaded (or for types)."""
    modules = {".".join(_parts(path)): path for path in sources()}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        wanted = graph.setdefault(module, set())
        for node in _loaded(tree_of(path)):
            found = []
            if isinstance(node, ast.ImportFrom) and node.module:
                found = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            for name in found:
                target = name if name in modules else name.rpartition(".")[0]
                if target in modules and target not in (module, PACKAGE.name):
                    wanted.add(target)
    graph.pop(PACKAGE.name, None)
    return graph


def _parts(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def _loaded(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one, without those inside functions, which run later."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _loaded(child)


class _RunningBroker:
    """A broker in a thread, with HTTP API and data folder; `record` profiles that thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _RunningBroker:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        import structlog
        import trio

        from amqp10broker import Broker, Config

        structlog.configure(processors=[_drop])

        async def serve() -> None:
            self._stop = trio.Event()
            self._token = trio.lowlevel.current_trio_token()
            config = Config(port=0, http_port=0, http=True, data_dir=str(self._folder))
            async with Broker(config) as broker:
                self.port = broker.addresses[0][1]
                self.http_port = broker.http_addresses[0][1]
                self._ready.set()
                await self._stop.wait()

        trio.run(serve)

    def record(self, act: Callable[[], object]) -> Mapping[str, int]:
        """Count calls, files, moves and depth inside the package while `act` runs in this thread."""
        import trio

        recorder = _Recorder()
        trio.from_thread.run_sync(recorder.start, trio_token=self._token)
        act()
        time.sleep(_QUIET_S)  # what the client need not wait for is a part of the way
        trio.from_thread.run_sync(recorder.stop, trio_token=self._token)
        return recorder.figures()


class _Recorder:
    """Counts what one thread does inside the package."""

    def __init__(self) -> None:
        self._calls = self._moves = self._depth = self._deepest = 0
        self._files: set[str] = set()
        self._at = ""
        self._package = str(PACKAGE)

    def start(self) -> None:
        """Begin, in the thread that is watched."""
        sys.setprofile(self._event)

    def stop(self) -> None:
        """End, in the same thread."""
        sys.setprofile(None)

    def figures(self) -> Mapping[str, int]:
        """The counts so far."""
        return {
            "calls": self._calls,
            "files": len(self._files),
            "moves between files": self._moves,
            "stack depth": self._deepest,
        }

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(self._package):
            return
        self._calls += 1
        self._files.add(name)
        self._moves += bool(self._at) and name != self._at
        self._at = name
        self._deepest = max(self._deepest, _frames_below(frame, self._package))


def _drop(*_: Any) -> Any:
    import structlog

    raise structlog.DropEvent


def _frames_below(frame: FrameType | None, package: str) -> int:
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith(package)
        frame = frame.f_back
    return count


def _least(broker: _RunningBroker, act: Callable[[], object]) -> Mapping[str, int]:
    """The shortest of several ways: timers of the broker run now and then in between."""
    return min(
        (broker.record(act) for _ in range(9)), key=lambda way: (way["moves between files"], way["calls"])
    )


def _consume(broker: _RunningBroker) -> Mapping[str, int]:
    from amqp10broker.client.blocking import connect
    from amqp10broker.client.message import data_message

    with connect("127.0.0.1", broker.port, user="guest", password="guest") as client:
        sender = client.sender("watched")
        receiver = client.receiver("watched", credit=1000)

        def once() -> None:
            sender.send(data_message(b"one"))
            delivery = receiver.receive()
            assert delivery is not None
            receiver.accept(delivery)
            client.flush()

        once()
        return _least(broker, once)


def _flow(broker: _RunningBroker) -> Mapping[str, int]:
    from amqp10broker.client.blocking import connect

    with connect("127.0.0.1", broker.port, user="guest", password="guest") as client:
        receiver = client.receiver("watched", credit=1000)

        def once() -> None:
            receiver.grant(1000)
            client.flush()

        return _least(broker, once)


def _publish_091(broker: _RunningBroker) -> Mapping[str, int]:
    return _confirmed(broker, "confirmed", {})


def _publish_quorum(broker: _RunningBroker) -> Mapping[str, int]:
    return _confirmed(broker, "replicated", {"x-queue-type": "quorum"})


def _confirmed(broker: _RunningBroker, queue: str, arguments: Mapping[str, str]) -> Mapping[str, int]:
    import pika

    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments=dict(arguments))
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2 if arguments else 1)
        publish = partial(channel.basic_publish, "", queue, b"one", properties)
        publish()
        return _least(broker, publish)


def _put_queue(broker: _RunningBroker) -> Mapping[str, int]:
    login = b64encode(b"guest:guest").decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    numbers = iter(range(100))

    def put() -> None:
        url = f"http://127.0.0.1:{broker.http_port}/api/queues/%2F/put-{next(numbers)}"
        body = json.dumps({"durable": False, "auto_delete": False, "arguments": {}}).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT")) as answer:
            answer.read()

    put()
    return _least(broker, put)


if __name__ == "__main__":
    sys.exit(main())
