"""What `run-cluster` runs: names, folders, ports, command lines."""

from __future__ import annotations

import os
import re
import shlex
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from amqp10broker.cli import cluster_launch, main
from amqp10broker.cli.cluster_launch import Launch, NodePlan, make_secret, plan_nodes, running_pid
from amqp10broker.cli.exits import Failed
from amqp10broker.cli.main import build_parser
from amqp10broker.cli.serving import config_of
from amqp10broker.cluster.bootstrap import read_nodes
from amqp10broker.errors import ConfigError


def test_node_k_has_the_kth_port_and_a_folder_of_its_name(tmp_path: Path) -> None:
    plans = plan_nodes(5, 6672, str(tmp_path), ["--log-level", "debug"])
    assert [(plan.name, plan.port, plan.cluster_port) for plan in plans] == [
        (name, 6672 + place, 26672 + place) for place, name in enumerate("abcde")
    ]
    assert [plan.folder for plan in plans] == [str(tmp_path / name) for name in "abcde"]


def test_the_command_line_is_one_that_serve_understands(tmp_path: Path) -> None:
    plan = plan_nodes(3, 5672, str(tmp_path), ["--log-level", "debug"])[1]
    words = shlex.split(shlex.join(plan.command))
    assert words[:4] == [sys.executable, "-P", "-m", "amqp10broker"]
    config = config_of(build_parser(["serve"]).parse_args(words[4:]))
    assert (config.node_name, config.port, config.cluster_port) == ("b", 5673, 25673)
    assert (config.data_dir, config.log_level) == (plan.folder, "debug")
    assert config.cluster_secret_file == str(tmp_path / "secret")
    assert [(name, at.port) for name, at in read_nodes(config.cluster_nodes).items()] == [
        ("a", 25672),
        ("b", 25673),
        ("c", 25674),
    ]


@pytest.mark.parametrize(("nodes", "port"), [(0, 5672), (27, 5672), (3, 0), (3, 65_534)])
def test_what_cannot_be_is_refused_in_one_sentence(nodes: int, port: int) -> None:
    with pytest.raises(ConfigError, match="must be 1 to"):
        plan_nodes(nodes, port, "x", [])


def test_the_secret_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    make_secret(str(tmp_path / "data"))
    path = tmp_path / "data" / "secret"
    first = path.read_text()
    assert len(first) > 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    make_secret(str(tmp_path / "data"))
    assert path.read_text() == first


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="the system does not show processes")
def test_a_pid_file_counts_only_if_its_process_is_that_node(tmp_path: Path) -> None:
    plan = NodePlan("a", str(tmp_path), 1, 2, ())
    assert running_pid(plan) is None
    (tmp_path / cluster_launch.PID).write_text(f"{os.getpid()}\n")
    assert running_pid(plan) is None  # a process, and another one
    program = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, plan.folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"up\n"
        (tmp_path / cluster_launch.PID).write_text(f"{process.pid}\n")
        assert running_pid(plan) == process.pid
        process.stdin.close()
    assert running_pid(plan) is None


def test_a_port_where_something_listens_is_refused_before_any_node_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        plans = [replace(plan, command=("true",)) for plan in plan_nodes(1, port, str(tmp_path), [])]
        with pytest.raises(Failed, match=f"^port {port} on 127.0.0.1 for node 'a' cannot be used"):
            Launch(plans, str(tmp_path)).run()
    assert not os.path.exists(plans[0].folder)


def test_the_commands_that_it_shows_are_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["amqp10broker"])
    plans = [
        NodePlan(name, str(tmp_path / name), port, port + 20_000, ()) for name, port in (("a", 1), ("b", 2))
    ]
    Launch(plans, str(tmp_path))._print_status_hint()
    shown = re.findall(r"^ +amqp10broker (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(shown) == 5
    for line in shown:
        main.build_parser(line.split(), whole=False).parse_args(line.split())
