"""RabbitMQ's command line tools and its image's configuration, against the real process.

The calls are those of compose files, testcontainers and Helm charts, and of RabbitMQ's own guides.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from amqp10broker.cli.main import TOOLS, main
from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.cluster_process import free_ports

Tools = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def tools(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Tools:
    """Run one line, and return its exit code and standard output."""
    monkeypatch.setenv("AMQP10BROKER_PORT", str(broker.port))
    monkeypatch.setenv("AMQP10BROKER_ADMIN_SOCKET", str(broker.admin_socket))

    def run(line: str) -> tuple[int, str, str]:
        code = main(shlex.split(line))
        out, errors = capfd.readouterr()
        return code, out, errors

    return run


CALLS = {
    "rabbitmq-diagnostics -q ping": "",
    "rabbitmq-diagnostics ping": "Ping succeeded\n",
    "rabbitmq-diagnostics -q check_running": "",
    "rabbitmq-diagnostics check_port_connectivity": "Successfully connected to every port\n",
    "rabbitmq-diagnostics -q check_local_alarms": "",
    "rabbitmq-diagnostics check_virtual_hosts -q": "",
    "rabbitmq-diagnostics check_protocol_listener amqp": "A listener of protocol amqp is running\n",
    "rabbitmqctl await_startup --timeout 60": "",
    "rabbitmqctl wait --timeout=60 /var/run/pid": "",
    "rabbitmqctl add_vhost v": "vhost 'v' added",
    "rabbitmqctl -q add_user ann secret": "",
    "rabbitmqctl set_user_tags ann administrator monitoring": 'for user "ann" to [administrator, monitoring]',
    "rabbitmqctl set_permissions -p v ann .* .* .*": "permissions of user 'ann' in vhost 'v' set\n",
    "rabbitmqctl authenticate_user ann secret -q": "",
    "rabbitmqctl -q list_users -s": "ann\tadministrator, monitoring\t",
    "rabbitmqctl change_password ann other -q": "",
    """rabbitmqctl set_policy -p v limits ^q '{"max-length": 3}' --apply-to queues -q""": "",
    "rabbitmqctl -q -p v list_policies name pattern": "name\tpattern\nlimits\t^q\n",
    "rabbitmqadmin --vhost=v declare queue name=q1 durable=true auto_delete=false": "queue declared\n",
    "rabbitmqadmin -V v queues declare --name q2 --type quorum": "queue declared\n",
    "rabbitmqadmin --vhost=v declare exchange name=x type=fanout arguments={}": "exchange declared\n",
    "rabbitmqadmin --vhost=v declare binding source=x destination=q1": "binding declared\n",
    "rabbitmqadmin -u ann -p other -V v publish exchange=x routing_key=k payload=tea": "message done\n",
    "rabbitmqctl list_queues -p v --silent name messages": "q1\t1\nq2\t0\n",
    "rabbitmqctl list_queues -p v -q name messages": "name\tmessages\nq1\t1\nq2\t0\n",
    "rabbitmqctl list_queues -p v name --formatter json": '[{"name":"q1"},{"name":"q2"}]',
    "rabbitmqctl purge_queue -p v q1": "1 message purged from queue 'q1'\n",
    "rabbitmqctl delete_queue -p v q1 --if-empty": "Queue was successfully deleted with 0 ready messages\n",
    "rabbitmqadmin --vhost=v declare permission user=ann configure=a write=b read=c": "permission declared\n",
    "rabbitmqctl list_permissions -p v -q": "ann\t",
    "rabbitmqctl clear_policy -p v limits -q": "",
    "rabbitmqctl close_all_connections over -q": "",
    "rabbitmqctl set_vm_memory_high_watermark 0.5 -q": "",
    "rabbitmqctl enable_feature_flag all -q": "",
    "rabbitmq-plugins enable --offline rabbitmq_management": "part of the broker",
    "rabbitmqctl delete_user ann -q": "",
    "rabbitmqctl delete_vhost v -q": "",
}


def test_the_calls_of_compose_files_and_guides_work_as_they_are_written(tools: Tools) -> None:
    """They run in this order after one start; each has exit code 0."""
    for line, expected in CALLS.items():
        code, out, errors = tools(line)
        assert (code, errors) == (0, ""), line
        shown = json.dumps(json.loads(out), separators=(",", ":")) if "json" in line else out
        assert (expected in shown) if expected else shown == "", (line, out)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("rabbitmqctl stop", 64, "stop the process with SIGTERM"),
        ("rabbitmqctl lits_queues", 64, "did you mean list_queues?"),
        ("rabbitmqctl eval 'node().'", 64, "not in Erlang"),
        ("rabbitmqctl add_user", 64, "write add_user USER PASSWORD"),
        ("rabbitmqctl authenticate_user guest wrong", 65, "failed to authenticate user 'guest'"),
        ("rabbitmqctl delete_queue missing", 1, "no queue 'missing'"),
        ("rabbitmqctl list_queues --formatter xml", 64, "write one of table, pretty_table, json"),
        ("rabbitmq-plugins enable rabbitmq_mqtt", 64, "rabbitmq_mqtt is not in this broker"),
        ("rabbitmq-diagnostics check_port_listener 1", 69, "no listener of port 1 is running"),
        ("rabbitmqadmin declare shovel name=a", 64, "there are: declare queue"),
        ("rabbitmqadmin declare queue", 64, "lacks name; add name=VALUE"),
        ("rabbitmqadmin declare queue name=q arguments=5", 64, "is not an object of JSON"),
        ("rabbitmq-queues add_replica q n", 64, "a stream is at one node"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_remedy(
    tools: Tools, line: str, code: int, said: str
) -> None:
    found, _, errors = tools(line)
    assert (found, len(errors.splitlines())) == (code, 1), errors
    assert said in errors


def test_a_tool_waits_for_a_broker_that_starts_and_gives_up_in_time(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMQP10BROKER_PORT", str(free_ports(1)))
    assert main(["rabbitmqctl", "await_startup", "--timeout", "0.1"]) == 3
    assert "no broker of this user runs" in capfd.readouterr().err


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """The container's environment has RabbitMQ's tool names, a configuration and its own ports."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for tool in TOOLS:
        (bin / tool).symlink_to(Path(sys.executable).parent / "amqp10broker")
    port = free_ports(3)
    (tmp_path / "rabbitmq.conf").write_text(
        f"management.tcp.port = {port + 1}\nprometheus.tcp.port = {port + 2}\n"
        "vm_memory_high_watermark.relative = 0.5\nmqtt.allow_anonymous = false\n"
        f"management.load_definitions = {tmp_path / 'definitions.json'}\n"
    )
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "10-more.conf").write_text("channel_max = 7\n")
    (tmp_path / "definitions.json").write_text(
        json.dumps({"vhosts": [{"name": "shop"}], "queues": [
            {"name": "orders", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}}
        ]})
    )  # fmt: skip
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AMQP10BROKER_")}
    return {
        **plain,
        "PATH": f"{bin}{os.pathsep}{plain.get('PATH', '')}",
        "RABBITMQ_CONFIG_FILE": str(tmp_path / "rabbitmq"),
        "RABBITMQ_CONFIG_FILES": str(folder),
        "RABBITMQ_DEFAULT_USER": "ann",
        "RABBITMQ_DEFAULT_PASS": "secret",
        "RABBITMQ_DEFAULT_VHOST": "/",
        "RABBITMQ_NODE_PORT": str(port),
    }


def test_the_server_is_configured_as_the_image_of_rabbitmq(image: dict[str, str]) -> None:
    """It reads variables, rabbitmq.conf, conf.d and definitions; the log has the line tools wait for."""
    with subprocess.Popen(
        ["rabbitmq-server"], env=image, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout.readline() == "Server startup complete\n"
            assert "mqtt.allow_anonymous (MQTT is not served)" in server.stderr.readline()
            login = pika.PlainCredentials("ann", "secret")
            place = pika.ConnectionParameters(port=int(image["RABBITMQ_NODE_PORT"]), credentials=login)
            with pika.BlockingConnection(place) as connection:
                assert connection._impl.params.channel_max == 7
            listed = subprocess.run(
                ["rabbitmqctl", "-q", "list_queues", "-p", "shop", "name"],
                env=image,
                capture_output=True,
                text=True,
                check=True,
            )
            assert listed.stdout == "name\norders\n"
        finally:
            server.terminate()
            server.communicate(timeout=20)


def test_the_containerfile_has_every_tool_and_the_servers_start() -> None:
    """One table lists the names of the tools; the image links each of them."""
    text = (REPOSITORY / "docs" / "operating" / "Containerfile").read_text()
    linked = text.partition("for tool in ")[2].partition(";")[0].replace("\\", " ").split()
    assert tuple(linked) == TOOLS
    assert 'CMD ["rabbitmq-server"]' in text
