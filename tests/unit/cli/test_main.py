"""The command line: what it accepts, how it refuses, and that it starts quickly."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from amqp10broker.cli import main, serving
from amqp10broker.config import Config
from amqp10broker.config.settings import SETTINGS
from tests.unit.cli.conftest import Broker


@pytest.fixture(autouse=True)
def _no_broker_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def config_of(*argv: str) -> Config:
    return serving.config_of(main.build_parser().parse_args(["serve", *argv]))


def test_serve_takes_all_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "b.toml"
    file.write_text("port = 1\nmax_link_credit = 1\nmax_queue_credit = 1\nlog_level = 'debug'")
    monkeypatch.setenv("AMQP10BROKER_MAX_LINK_CREDIT", "2")
    monkeypatch.setenv("AMQP10BROKER_MAX_QUEUE_CREDIT", "2")
    config = config_of("--config", str(file), "--max-queue-credit", "3")
    assert (config.port, config.flow.max_link_credit, config.flow.max_queue_credit) == (1, 2, 3)
    assert config.log_level == "debug"


def test_every_scalar_setting_is_an_option_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["serve", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert [setting.flag for setting in SETTINGS.values() if setting.flag not in shown] == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--port", "x"], "amqp10broker: flag --port is 'x'; must be an integer from 0 to 65535"),
        (["serve", "--max-link-credit", "0"], "flag --max-link-credit is 0; must be an integer from 1 to"),
        (["serve", "--config", "nonexistent.toml"], "nonexistent.toml cannot be read"),
        (["serve", "--confirm-delay", "q=1"], "only together with test_mode (--test-mode)"),
        (["set", "max_link_credit", "0"], "VALUE is '0'; must be an integer from 1 to"),
        (["connection", "close", "one"], "ID is 'one'; must be an integer"),
        (["policy", "set", "p", ".*", "{}", "--priority", "high"], "PRIORITY is 'high'; must be an integer"),
        (["status", "--port", "x"], "flag --port is 'x'"),
    ],
)
def test_bad_values_exit_with_2_and_one_sentence(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(argv) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["serve", "--prot", "1"],
        ["serve", "--max-link", "5"],
        ["set", "port", "1"],
        ["set", "max_link_credit"],
        ["alarm", "set", "memory", "maybe"],
        ["status", "--watch", "0"],
        ["status", "--watch", "often"],
        ["status", "--format", "xml"],
        ["status", "--port", "1", "--admin-socket", "x"],
    ],
    ids=" ".join,
)
def test_bad_usage_exits_with_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(argv)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("argv", "name", "value", "meaning"),
    [
        ("memory-limit 0.6", "vm_memory_high_watermark", "0.6", "above 7 bytes of memory"),
        (
            "memory-limit absolute 512MB",
            "vm_memory_high_watermark",
            "absolute 512MB",
            "above 7 bytes of memory",
        ),
        ("disk-limit 1GB", "disk_free_limit", "1GB", "below 7 bytes of free disk space"),
        (
            "disk-limit mem_relative 1.5",
            "disk_free_limit",
            "mem_relative 1.5",
            "below 7 bytes of free disk space",
        ),
    ],
)
def test_limits_of_alarms(
    argv: str, name: str, value: str, meaning: str, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.answers = {None: {"limit_bytes": 7, "alarms": []}}
    assert main.main(["alarm", *argv.split(), "--port", "1"]) == 0
    assert broker.requests == [{"op": "set-limit", "arguments": {"name": name, "value": value}}]
    assert capsys.readouterr().out == f"{name} is now {value}: publishers are blocked {meaning}\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["alarm", "memory-limit", "1.5"],
        ["alarm", "memory-limit", "absolute", "0.5"],
        ["alarm", "memory-limit", "512", "MB"],
        ["alarm", "disk-limit", "lots"],
        ["alarm", "disk-limit", "mem_relative", "1GB"],
    ],
    ids=" ".join,
)
def test_a_limit_that_cannot_be_read_is_not_sent(
    broker: Broker, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(argv) == 2
    assert broker.requests == []
    assert f"{' '.join(argv[:2])} is '{' '.join(argv[2:])}'; must be " in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["status"],
        ["status", "--watch"],
        ["set", "max_link_credit", "5"],
        ["queue", "list"],
        ["queue", "declare", "q"],
        ["connection", "close", "1"],
        ["definitions", "export", "-"],
    ],
    ids=" ".join,
)
def test_without_a_broker_exits_with_3_and_says_how_to_start_one(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(argv) == 3
    complaint = capsys.readouterr().err
    assert "no broker of this user runs on port 5672; start one with 'amqp10broker serve'" in complaint


def test_ports_of_other_brokers_are_named_but_few(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("amqp10broker.runtime.admin.path.found_ports", lambda: range(1, 9))
    assert main.main(["status"]) == 3
    assert "try --port 1 or --port 2 or --port 3\n" in capsys.readouterr().err


def test_the_table_of_commands_is_what_the_files_have() -> None:
    """The list of commands is shown without importing their files, so it is kept beside them."""
    found = {
        (command.words, home)
        for home in {home for home, *_ in main.homes().values()}
        for command in importlib.import_module(f"amqp10broker.cli.{home}").COMMANDS
    }
    assert found == {(words, home) for words, (home, *_) in main.homes().items()}


@pytest.mark.parametrize(
    ("typed", "meant"), [("list_queues", "queue list"), ("set-policy", "policy set"), ("polcy set", "policy")]
)
def test_an_unknown_command_names_the_one_that_is_meant(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of the operation, which RabbitMQ's tools spell with underscores, is also understood."""
    assert main.main(typed.split()) == 2
    name = typed.split()[0]
    assert capsys.readouterr().err == f"amqp10broker: there is no command '{name}'; did you mean {meant}?\n"


REGISTRY: Final = "amqp10broker.operations.registry"


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        *(
            (home, ("trio", "structlog", "argon2"))
            for home in sorted({home for home, *_ in main.homes().values()})
        ),
        *((name, ("trio", "structlog", REGISTRY)) for name in ("main", "admin", "status", "publishing")),
        ("calls", tuple(f"amqp10broker.{name}" for name in ("protocols", "message", "storage", "api"))),
    ],
)
def test_the_command_line_starts_without_trio_and_structlog(modules: str, without: tuple[str, ...]) -> None:
    """Importing Trio takes longer than all of ``--help``; only commands of operations need it."""
    code = f"import sys, amqp10broker.cli.{modules}; print(set({without}) & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "set()\n"
