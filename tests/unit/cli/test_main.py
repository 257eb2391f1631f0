"""The command line: what it accepts, how it refuses, and that it starts quickly."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

import amqp10broker
from amqp10broker.cli import admin, exits, main, serving
from amqp10broker.config import Config, FaultInjection, User
from amqp10broker.config.records import SETTINGS


@pytest.fixture(autouse=True)
def _no_broker_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def config_of(*argv: str) -> Config:
    return serving.config_of(main.build_parser().parse_args(["serve", *argv]))


def test_serve_without_options_is_the_default_configuration() -> None:
    assert config_of("--no-http") == Config(http=False)
    assert config_of() == Config(
        http_port=15672, http_optional=True, prometheus_port=15692, prometheus_optional=True
    )
    assert config_of("--no-prometheus").prometheus_port is None


@pytest.mark.parametrize(
    ("options", "port", "optional"),
    [
        (["--port", "6000"], 16_000, True),
        (["--port", "0"], 0, True),
        (["--port", "60000"], 0, True),
        (["--http-port", "8080"], 8_080, False),
        (["--http-port", "8080", "--http-optional"], 8_080, True),
    ],
)
def test_http_is_served_where_it_is_asked_for_or_above_port(
    options: list[str], port: int, optional: bool
) -> None:
    config = config_of(*options)
    assert (config.http_port, config.http_optional) == (port, optional)


def test_serve_takes_all_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "b.toml"
    file.write_text("port = 1\nmax_link_credit = 1\nmax_queue_credit = 1\nlog_level = 'debug'")
    monkeypatch.setenv("AMQP10BROKER_MAX_LINK_CREDIT", "2")
    monkeypatch.setenv("AMQP10BROKER_MAX_QUEUE_CREDIT", "2")
    config = config_of("--config", str(file), "--max-queue-credit", "3")
    assert (config.port, config.flow.max_link_credit, config.flow.max_queue_credit) == (1, 2, 3)
    assert config.log_level == "debug"


def test_serve_options_of_every_kind() -> None:
    config = config_of(
        *("--user", "a:b", "--user", "c:d", "--host", "::1", "--port", "0", "--trace-frames", "--test-mode"),
        *("--confirm-delay", "slow*=5", "--admin-socket", "", "--no-declare-on-attach"),
    )
    assert config.users == (User("a", "b"), User("c", "d"))
    assert (config.host, config.port, config.admin_socket) == ("::1", 0, "")
    assert config.trace_frames
    assert not config.declare_on_attach
    assert config.fault_injection == FaultInjection((("slow*", 5),))


def test_every_scalar_setting_is_an_option_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["serve", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert [setting.flag for setting in SETTINGS.values() if setting.flag not in shown] == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["lits-queues"], "there is no command 'lits-queues'; did you mean list-queues?"),
        (["lits-queues", "--port", "1"], "there is no command 'lits-queues'; did you mean list-queues?"),
        (["set_policy", "p"], "there is no command 'set_policy'; did you mean set-policy?"),
        (["zzz"], "there is no command 'zzz'; 'amqp10broker --help' lists them"),
        (["status", "--prot", "5673"], "there is no option --prot; did you mean --port?"),
        (["set", "--prot=1", "max_link_credit", "5"], "there is no option --prot; did you mean --port?"),
        (
            ["declare", "queue", "q", "--auto-delet"],
            "no option --auto-delet; did you mean --auto-delete?",
        ),
        (
            ["serve", "--max-link-cerdit", "5"],
            "--max-link-cerdit; did you mean --max-link-credit?",
        ),
        (["status", "--zzz"], "there is no option --zzz\n"),
        (["set", "max_link_cerdit", "5"], "'max_link_cerdit' is none; did you mean max_link_credit?"),
        (["declare", "qeue", "q"], "'qeue' is none; did you mean queue?"),
        (["status", "--format", "jsno"], "'jsno' is none; did you mean json?"),
        (["status", "--format", "xml"], "'xml' is none; known are table, json"),
        (["list-queues", "mesages"], "column 'mesages' is unknown to list-queues; did you mean messages?"),
    ],
)
def test_a_mistyped_word_is_asked_about(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands, options, their values and columns: exit code 2, and what may have been meant."""
    try:
        code: object = main.main(argv)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["publish", "--", "--prot"], ["publish", "--- a text", "--key", "k"]])
def test_what_only_looks_like_an_option_is_a_text(argv: list[str]) -> None:
    """Behind two dashes, and with a blank in it, as the parser itself has it."""
    main.build_parser().check_options(argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--port", "x"], "amqp10broker: flag --port is 'x'; must be an integer from 0 to 65535"),
        (["serve", "--max-link-credit", "0"], "flag --max-link-credit is 0; must be an integer from 1 to"),
        (["serve", "--config", "nonexistent.toml"], "nonexistent.toml cannot be read"),
        (["serve", "--confirm-delay", "q=1"], "only together with test_mode (--test-mode)"),
        (["set", "max_link_credit", "0"], "VALUE is '0'; must be an integer from 1 to"),
        (["close-connection", "one"], "ID is 'one'; must be an integer"),
        (["set-policy", "p", ".*", "{}", "--priority", "high"], "PRIORITY is 'high'; must be an integer"),
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
        [],
        ["serve", "--prot", "1"],
        ["serve", "--max-link", "5"],
        ["set", "port", "1"],
        ["set", "max_link_credit"],
        ["alarm", "memory", "maybe"],
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


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"amqp10broker {amqp10broker.__version__}\n"


def test_watch_has_a_default_interval() -> None:
    parse = main.build_parser().parse_args
    assert parse(["status"]).watch is None
    assert parse(["status", "--watch"]).watch == 1.0
    assert parse(["status", "--watch", "0.5"]).watch == 0.5


class TestTalkingToTheBroker:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[admin.Place, Any]]:
        requests: list[tuple[admin.Place, Any]] = []

        def ask(place: admin.Place, request: Any) -> dict[str, Any]:
            requests.append((place, request))
            return {}

        monkeypatch.setattr(admin, "ask", ask)
        return requests

    def test_set(self, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
        assert main.main(["set", "max_link_credit", "50", "--port", "5673"]) == 0
        request = {"op": "set", "arguments": {"name": "max_link_credit", "value": 50}}
        assert asked == [(admin.Place(5673, None), request)]
        assert capsys.readouterr().out == "max_link_credit is now 50\n"

    def test_alarm(self, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
        assert main.main(["alarm", "memory", "on", "--admin-socket", "/run/x"]) == 0
        assert main.main(["alarm", "disk", "off"]) == 0
        assert asked == [
            (admin.Place(5672, "/run/x"), {"op": "alarm", "arguments": {"name": "memory", "on": True}}),
            (admin.Place(5672, None), {"op": "alarm", "arguments": {"name": "disk", "on": False}}),
        ]
        assert capsys.readouterr().out == "the memory alarm is on\nthe disk alarm is off\n"

    def test_an_alarm_that_stays_on_is_said_so(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(admin, "ask", lambda place, request: {"alarms": ["memory"]})
        assert main.main(["alarm", "memory", "off"]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("the memory alarm stays on, for another reason")
        assert "'amqp10broker set-vm-memory-high-watermark'" in shown

    @pytest.mark.parametrize(
        ("argv", "name", "value", "meaning"),
        [
            (
                ["set-vm-memory-high-watermark", "0.6"],
                *("vm_memory_high_watermark", "0.6"),
                "publishers are held back above 7 bytes of memory",
            ),
            (
                ["set-vm-memory-high-watermark", "absolute", "512MB"],
                *("vm_memory_high_watermark", "absolute 512MB"),
                "publishers are held back above 7 bytes of memory",
            ),
            (
                ["set-disk-free-limit", "1GB"],
                *("disk_free_limit", "1GB"),
                "publishers are held back below 7 bytes of free disk",
            ),
            (
                ["set-disk-free-limit", "mem_relative", "1.5"],
                *("disk_free_limit", "mem_relative 1.5"),
                "publishers are held back below 7 bytes of free disk",
            ),
        ],
        ids=str,
    )
    def test_limits_of_alarms(
        self,
        argv: list[str],
        name: str,
        value: str,
        meaning: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """As rabbitmqctl takes them."""
        asked: list[Any] = []

        def ask(place: admin.Place, request: Any) -> dict[str, Any]:
            asked.append(request)
            return {"limit_bytes": 7, "alarms": []}

        monkeypatch.setattr(admin, "ask", ask)
        assert main.main([*argv, "--port", "1"]) == 0
        assert asked == [{"op": "set-limit", "arguments": {"name": name, "value": value}}]
        assert capsys.readouterr().out == f"{name} is now {value}: {meaning}\n"

    def test_a_share_of_an_unknown_memory_is_said_to_be_no_use(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(admin, "ask", lambda place, request: {"limit_bytes": None})
        assert main.main(["set-vm-memory-high-watermark", "0.5"]) == 0
        assert "give an amount" in capsys.readouterr().out

    @pytest.mark.parametrize(
        "argv",
        [
            ["set-vm-memory-high-watermark", "1.5"],
            ["set-vm-memory-high-watermark", "absolute", "0.5"],
            ["set-vm-memory-high-watermark", "512", "MB"],
            ["set-disk-free-limit", "lots"],
            ["set-disk-free-limit", "mem_relative", "1GB"],
        ],
        ids=" ".join,
    )
    def test_a_limit_that_cannot_be_read_is_not_sent(
        self, asked: list[Any], argv: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main.main(argv) == 2
        assert asked == []
        assert f"{argv[0]} is '{' '.join(argv[1:])}'; must be " in capsys.readouterr().err

    def test_status_as_json(self, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
        assert main.main(["status", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == {}

    @pytest.mark.parametrize(
        "argv",
        [
            ["status"],
            ["status", "--watch"],
            ["set", "max_link_credit", "5"],
            ["list-queues"],
            ["declare", "queue", "q"],
            ["close-connection", "1"],
            ["export-definitions", "-"],
        ],
        ids=" ".join,
    )
    def test_without_a_broker_exits_with_3_and_says_how_to_start_one(
        self, argv: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main.main(argv) == 3
        complaint = capsys.readouterr().err
        assert "no broker of yours runs on port 5672; start one with 'amqp10broker serve'" in complaint

    def test_a_refusal_of_the_broker_exits_with_1(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(place: admin.Place, request: Any) -> None:
            raise exits.RefusedByBroker("the broker refuses: no\nnever")

        monkeypatch.setattr(admin, "ask", refuse)
        assert main.main(["alarm", "disk", "on"]) == 1
        assert capsys.readouterr().err == "amqp10broker: the broker refuses: no never\n"


def test_the_table_of_commands_is_what_the_files_have() -> None:
    """The list of commands is shown without importing their files, so it is kept beside them."""
    found = {
        home: [command.name for command in importlib.import_module(f"amqp10broker.cli.{home}").COMMANDS]
        for home in main.homes()
    }
    assert found == {home: list(names) for home, names in main.homes().items()}


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with a line on it, and the exit codes below."""
    with pytest.raises(SystemExit) as ended:
        main.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    missing = [name for names in main.homes().values() for name in names if f"    {name}" not in shown]
    assert missing == []
    assert "3 no broker answers" in " ".join(shown.split())


@pytest.mark.parametrize("name", [name for names in main.homes().values() for name in names])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own parser is made, and says more than its name."""
    with pytest.raises(SystemExit) as ended:
        main.main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: amqp10broker {name}" in capsys.readouterr().out


REGISTRY: Final = "amqp10broker.operations.registry"


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        *((home, ("trio", "structlog", "argon2")) for home in main.homes()),
        *((name, ("trio", "structlog", REGISTRY)) for name in ("main", "admin", "status", "publishing")),
    ],
)
def test_the_command_line_starts_without_trio_and_structlog(modules: str, without: tuple[str, ...]) -> None:
    """Importing Trio takes longer than all that ``--help`` does; only commands of operations need these."""
    code = f"import sys, amqp10broker.cli.{modules}; print(set({without}) & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "set()\n"


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "amqp10broker", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == f"amqp10broker {amqp10broker.__version__}\n"


def test_unknown_public_names_are_ordinary_attribute_errors() -> None:
    assert amqp10broker.Config is Config
    with pytest.raises(AttributeError, match="no attribute 'Borker'"):
        _ = amqp10broker.Borker
    assert dir(amqp10broker) == ["Broker", "Config", "__version__"]
