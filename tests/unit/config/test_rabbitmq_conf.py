"""rabbitmq.conf and the variables of RabbitMQ's image as settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqp10broker.config.load import RABBITMQ_KEYS, load_rabbitmq
from amqp10broker.config.load import load as load_ours
from amqp10broker.config.settings import SETTINGS, Config
from amqp10broker.errors import ConfigError


def config_of(text: str, **environ: str) -> Config:
    return load_rabbitmq([("rabbitmq.conf", text)], environ)[0]


def test_every_equal_is_a_setting_or_has_a_reason() -> None:
    for row in RABBITMQ_KEYS:
        assert row.setting in SETTINGS if row.setting else row.note, row.key


@pytest.mark.parametrize(
    ("line", "setting", "value"),
    [
        ("listeners.tcp.default = 5673", "port", 5673),
        ("listeners.tcp.local = 127.0.0.2:5673", "host", "127.0.0.2"),
        ("listeners.tcp.1 = [::1]:5673", "host", "::1"),
        ("heartbeat = 20", "idle_timeout_ms", 20_000),
        ("heartbeat = 0", "idle_timeout_ms", 0),
        ("vm_memory_high_watermark.absolute = 512MB", "vm_memory_high_watermark", "512MB"),
        ("disk_free_limit.relative = 1.5", "disk_free_limit", "mem_relative 1.5"),
        ("management.tcp.port = 8080", "http_port", 8080),
        ("log.console.formatter = json", "log_format", "json"),
        ("log.console.level = debug  # all of it", "log_level", "debug"),
        ("ssl_options.certfile = '/etc/with # in it.pem'", "tls_certificate", "/etc/with # in it.pem"),
        (
            "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true",
            "tls_verify",
            "required",
        ),
        ("ssl_options.verify = verify_peer", "tls_verify", "optional"),
        ("loopback_users = none", "loopback_users", ()),
        ("loopback_users.guest = false", "loopback_users", ()),
        ("load_definitions = /d.json", "definitions", "/d.json"),
        ("anonymous_login_user = none", "anonymous_login_user", ""),
        ("auth_backends.1 = rabbit_auth_backend_internal", "auth_backends", "internal"),
        ("quorum_queue.continuous_membership_reconciliation.enabled = on", "quorum_reconciliation", True),
        ("max_message_size = 1048576", "max_message_size_bytes", 1_048_576),
    ],
)
def test_a_key_is_its_equal(line: str, setting: str, value: object) -> None:
    assert getattr(config_of(line), setting) == value


def test_a_user_is_made_of_two_keys_or_of_the_variables_of_the_image() -> None:
    """The variables take precedence; with another user, guest and ANONYMOUS are removed."""
    text = "default_user = ann\ndefault_pass = a secret"
    (user,) = config_of(text).users
    assert (user.name, user.password) == ("ann", "a secret")
    (user,) = config_of(text, RABBITMQ_DEFAULT_USER="bob", RABBITMQ_DEFAULT_PASS="other").users
    assert (user.name, user.password) == ("bob", "other")
    assert config_of(text).anonymous_login_user == ""


def test_variables_of_this_broker_take_precedence_over_all() -> None:
    config = config_of("channel_max = 10", RABBITMQ_NODE_PORT="5673", AMQP10BROKER_PORT="5674")
    assert (config.port, config.channel_max) == (5674, 10)


def test_keys_without_an_equal_are_named_in_one_warning_with_their_reason() -> None:
    text = "mqtt.listeners.tcp.default = 1883\nnet_ticktime = 60\ndefault_permissions.read = .*"
    _, warnings = load_rabbitmq([("a", text)], {})
    (warning,) = warnings
    assert "equal: mqtt.listeners.tcp.default (MQTT is not served), net_ticktime; take" in warning


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", r"f:1 is 'nonsense'; write: key = value"),
        ("\nlisteners.tcp.default = abc", r"f:2, listeners.tcp.default is 'abc'; must be an integer"),
        ("heartbeat = soon", r"f:1, heartbeat is 'soon'; must be an integer"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_rabbitmq([("f", line)], {})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("quorum_queue.commands_soft_limit", "is credit_flow_initial here"),
        ("rabbit.max_link_credit", "is max_link_credit here"),
        ("raft.segment_max_entries", "has no equal: the journal has files by size"),
        ("max_link_credits", "did you mean max_link_credit"),
        ("zzz", "docs/settings.md lists them"),
    ],
)
def test_an_unknown_setting_is_answered_with_its_equal(name: str, said: str) -> None:
    """In our own file, the error for a name of RabbitMQ's gives ours, and not all names."""
    from amqp10broker.config.load import parse_file

    with pytest.raises(ConfigError, match=said) as refused:
        parse_file({name: 1}, "file.toml")
    assert len(str(refused.value)) < 200
    assert load_ours(file=None, environ={}, flags={}) == Config()


def test_a_key_that_is_unknown_names_the_one_that_is_meant() -> None:
    """It also has the remedy: use the file as it is."""
    (warning,) = load_rabbitmq([("f", "disk_free_limit.absolut = 1GB\nfoo.bar = 1")], {})[1]
    assert (
        "disk_free_limit.absolut (did you mean disk_free_limit.absolute?), foo.bar; take them out" in warning
    )
    assert warning.endswith("'amqp10broker rabbitmq-server --keys' lists those that have one")


def test_the_page_of_settings_has_every_key_with_its_equal() -> None:
    """It has no others, and the order is the table's."""
    page = (Path(__file__).parents[3] / "docs" / "settings.md").read_text(encoding="utf-8")
    table = page.partition("| key of rabbitmq.conf | setting here |\n|---|---|\n")[2].partition("\n\n")[0]
    equals = ((row.key, f"`{row.setting}`" if row.setting else f"none: {row.note}") for row in RABBITMQ_KEYS)
    assert table.splitlines() == [f"| `{key}` | {equal} |" for key, equal in equals]
