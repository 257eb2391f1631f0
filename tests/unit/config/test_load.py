"""Settings: records, amounts, where they come from, rabbitmq.conf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amqp10broker.config import (
    Config,
    ConfigError,
    FaultInjection,
    FlowOverride,
    FlowSettings,
    QueueDeclaration,
    User,
)
from amqp10broker.config.setting_types import Amount, disk_limit, memory_watermark
from amqp10broker.config.settings import FLOW_SETTINGS, SETTINGS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "broker.toml"


def load_text(file: Path, text: str, **sources: Any) -> Config:
    file.write_text(text, encoding="utf-8")
    return Config.load(file=file, **sources)


def test_a_flag_that_was_not_given_changes_nothing(file: Path) -> None:
    flags = {"max_link_credit": None, "trace_frames": None}
    assert load_text(file, "max_link_credit = 1", flags=flags).flow.max_link_credit == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_every_scalar_can_be_set_from_file_variable_and_flag(name: str, file: Path) -> None:
    setting = SETTINGS[name]
    value: Any = {int: setting.maximum, str: "guest", bool: True}[setting.kind]
    if setting.choices:
        value = setting.choices[-1]
    if setting.reads is not None:
        value = "a=b" if name in ("oauth2_scope_aliases", "oauth2_signing_keys") else "0.5"
        value = "4.3" if name == "emulate" else value
    written = "true" if value is True else repr(value)
    expected = load_text(file, f"{name} = {written}".replace("'", '"'))
    assert getattr(expected.flow if hasattr(expected.flow, name) else expected, name) == value
    as_text = written.strip("'")
    assert Config.load(environ={setting.variable: as_text}) == expected
    assert Config.load(flags={name: as_text}) == expected


@pytest.mark.parametrize(("text", "value"), [("true", True), ("ON", True), ("1", True), ("no", False)])
def test_switches_in_the_environment(text: str, value: bool) -> None:
    assert Config.load(environ={"AMQP10BROKER_TRACE_FRAMES": text}).trace_frames is value


COMPLETE = """
host = "0.0.0.0"
loopback_users = []
anonymous_login_user = ""
test_mode = true

[[user]]
name = "app"
password = "s:e=cret"

[[queue]]
name = "orders"

[[queue]]
name = "scratch"
durable = false
arguments = { x-max-length = 10 }

[[override]]
address = "/queues/slow*"
max_link_credit = 20

[[override]]
container = "batch-*"
max_incoming_window = 800

[[fault.confirm_delay]]
queue = "slow*"
ms = 5
"""


def test_a_flow_setting_may_be_automatic(file: Path) -> None:
    """The word is valid in the file, a variable, an option and an override; no other word is."""
    config = load_text(
        file, 'max_link_credit = "auto"\n[[override]]\naddress = "x"\nmax_link_credit = "auto"'
    )
    assert config.flow.max_link_credit == "auto"
    assert config.flow.automatic == ("max_link_credit",)
    assert config.flow.link_credit == 170
    words = dict.fromkeys(("max_link_credit", "max_incoming_window", "max_queue_credit"), "auto")
    every = FlowSettings(**words)
    assert every.automatic == tuple(words)
    assert (every.link_credit, every.incoming_window, every.queue_credit) == (170, 400, 256)
    assert FlowOverride(address="x", **words).changes() == words
    assert config.overrides == (FlowOverride(address="x", max_link_credit="auto"),)
    for given in (
        {"environ": {"AMQP10BROKER_MAX_LINK_CREDIT": "auto"}},
        {"flags": {"max_link_credit": "auto"}},
    ):
        assert load_text(file, "max_link_credit = 5", **given).flow.max_link_credit == "auto"
    assert config.flow.changed("max_link_credit", 5, source="set").link_credit == 5
    with pytest.raises(ConfigError, match="must be an integer from 1 to 4294967295, or auto"):
        load_text(file, 'max_link_credit = "Auto"')
    with pytest.raises(ConfigError, match="port is 'auto'; must be an integer from 0 to 65535$"):
        load_text(file, 'port = "auto"')


def test_a_complete_file(file: Path) -> None:
    assert load_text(file, COMPLETE) == Config(
        host="0.0.0.0",
        loopback_users=(),
        anonymous_login_user="",
        test_mode=True,
        users=(User("app", "s:e=cret"),),
        queues=(
            QueueDeclaration("orders"),
            QueueDeclaration("scratch", durable=False, arguments={"x-max-length": 10}),
        ),
        overrides=(
            FlowOverride(address="/queues/slow*", max_link_credit=20),
            FlowOverride(container="batch-*", max_incoming_window=800),
        ),
        fault_injection=FaultInjection((("slow*", 5),)),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_link_credit = 0", ": max_link_credit is 0; must be an integer from 1 to 4294967295"),
        ("max_link_credit = '5'", ": max_link_credit is '5'; must be an integer"),
        ("port = true", ": port is true; must be an integer"),
        ("port = 1.0", ": port is 1.0; must be an integer"),
        ("host = 5", ": host is 5; must be a string"),
        ("trace_frames = 1", ": trace_frames is 1; must be true or false"),
        ("max_link_credits = 5", ": max_link_credits is not a setting; did you mean max_link_credit?"),
        ("zzz = 5", ": zzz is not a setting; docs/settings.md"),
        ("[flow]\nmax_link_credit = 5", ": flow is not a setting"),
        ("loopback_users = 'guest'", ": loopback_users is 'guest'; must be a list of strings"),
        ("loopback_users = [1]", ": loopback_users is [1]; must be a list of strings"),
        ("queue = 5", ": queue is 5; must be an array of tables: [[queue]]"),
        ("[queue]\nname = 'a'", "must be an array of tables: [[queue]]"),
        ("[[queue]]\ndurable = true", ": [[queue]] number 1, name is missing; must be given"),
        ("[[queue]]\nname = ''", ": [[queue]] number 1, name is ''; must be a string of 1 to 255 bytes"),
        ("[[queue]]\nname = 'a'\n[[queue]]\nname = 5", ": [[queue]] number 2, name is 5"),
        ("[[queue]]\nname = 'a'\n[[queue]]\nname = 'a'", ": queue has 'a' twice"),
        ("[[queue]]\nname = 'a'\ndurable = 1", ": [[queue]] number 1, durable is 1; must be true or false"),
        ("[[queue]]\nname = 'a'\ntype = 'x'", ": [[queue]] number 1, type is not a setting"),
        ("[[queue]]\nname = 'a'\narguments = 5", ": [[queue]] number 1, arguments is 5"),
        ("[[user]]\nname = 'a'", ": [[user]] number 1, password is missing"),
        ("[[user]]\nname = 'a'\npassword = ''", ": [[user]] number 1, password is empty"),
        ("[[override]]\naddress = 'a'", ": [[override]] number 1 changes nothing"),
        ("[[override]]\nmax_link_credit = 0", ": [[override]] number 1, max_link_credit is 0"),
        ("[[override]]\nadress = 'a'", "did you mean address?"),
        ("fault = 5", ": fault is 5; must be a table"),
        ("[fault]\nconfirm = 5", ": fault, confirm is not a setting"),
        ("[fault]\nconfirm_delay = 5", "must be an array of tables: [[fault.confirm_delay]]"),
        ("[[fault.confirm_delay]]\nms = 5", ": [[fault.confirm_delay]] number 1, queue is missing"),
        ("[[fault.confirm_delay]]\nqueue = 'a'\nms = -1", ": [[fault.confirm_delay]] number 1, ms is -1"),
        ("[[fault.confirm_delay]]\nqueue = 5\nms = 1", ": [[fault.confirm_delay]] number 1, queue is 5"),
        ("[[fault.confirm_delay]]\nqueue = 'a'\nms = 1", ": fault is given; is allowed only"),
        ("anonymous_login_user = 'x'", ": anonymous_login_user is 'x', and there is no such user"),
    ],
)
def test_an_error_in_the_file_names_file_and_key(file: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(file, text)
    assert f"{file}" in str(caught.value)
    assert message in str(caught.value)


def test_what_is_not_toml_is_told_with_its_line(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"broker\.toml:2:\d+ is not TOML: "):
        load_text(file, "port = 1\nhost = = 2\n")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("AMQP10BROKER_PORT", "abc", "variable AMQP10BROKER_PORT is 'abc'; must be an integer from 0 to"),
        ("AMQP10BROKER_PORT", "", "variable AMQP10BROKER_PORT is ''"),
        ("AMQP10BROKER_PORT", "9" * 5000, "variable AMQP10BROKER_PORT is '999"),
        ("AMQP10BROKER_PORT", "\u0665", "variable AMQP10BROKER_PORT is "),
        ("AMQP10BROKER_MAX_LINK_CREDIT", "0", "must be an integer from 1 to 4294967295"),
        ("AMQP10BROKER_TRACE_FRAMES", "maybe", "must be true or false"),
        ("AMQP10BROKER_LOG_LEVEL", "loud", "must be one of debug"),
        ("AMQP10BROKER_MAX_CREDIT", "5", "variable AMQP10BROKER_MAX_CREDIT is not a setting"),
        ("AMQP10BROKER_ANONYMOUS_LOGIN_USER", "x", "must be one of the users (guest)"),
    ],
)
def test_an_error_in_the_environment_names_the_variable(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(environ={variable: value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_link_credit": "0"}, "flag --max-link-credit is 0"),
        ({"port": "x"}, "flag --port is 'x'"),
        ({"user": ["nocolon"]}, "flag --user is not NAME:PASSWORD"),
        ({"user": [":x"]}, "flag --user is not NAME:PASSWORD"),
        ({"user": ["a:b", "a:c"]}, "flag --user has 'a' twice"),
        ({"confirm_delay": ["slow"], "test_mode": True}, "must be QUEUE-PATTERN=MILLISECONDS"),
        ({"confirm_delay": ["slow=x"], "test_mode": True}, "flag --confirm-delay is 'x'"),
        ({"confirm_delay": ["slow=5"]}, "flag --confirm-delay is given; is allowed only together with"),
        ({"prot": "5"}, "flag --prot is not a setting; did you mean --port?"),
    ],
)
def test_an_error_on_the_command_line_names_the_flag(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(flags=flags)
    assert message in str(caught.value)


def test_the_password_of_a_malformed_user_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(flags={"user": [":hunter2"]})
    assert "hunter2" not in str(caught.value)


def test_users_on_the_command_line_replace_the_others_and_take_anonymous_away(file: Path) -> None:
    config = load_text(file, "[[user]]\nname='x'\npassword='y'", flags={"user": ["a:b:c"]})
    assert config.users == (User("a", "b:c"),)
    assert config.anonymous_login_user == ""


def test_confirm_delays_on_the_command_line() -> None:
    config = Config.load(flags={"test_mode": True, "confirm_delay": ["slow*=5", "a=b=0"]})
    assert config.fault_injection == FaultInjection((("slow*", 5), ("a=b", 0)))


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        ("1000", 1000),
        ("0MB", 0),
        ("10B", 10),
        ("10k", 10_000),
        ("10K", 10_000),
        ("10kB", 10_000),
        ("10KB", 10_000),
        ("10MB", 10_000_000),
        ("10Mb", 10_000_000),
        ("10m", 10_000_000),
        ("10G", 10_000_000_000),
        ("10GB", 10_000_000_000),
        ("10T", 10**13),
        ("1PB", 10**15),
        ("10kiB", 10_240),
        ("10Ki", 10_240),
        ("10MiB", 10_485_760),
        ("10mi", 10_485_760),
        ("10GiB", 10_737_418_240),
        ("1Ti", 2**40),
        ("2PiB", 2**51),
        ("absolute 512MB", 512_000_000),
        ("absolute 1073741824", 1_073_741_824),
    ],
)
def test_units_are_rabbitmqs(written: str, size_bytes: int) -> None:
    """A letter alone or with B counts by 1000, with i by 1024."""
    assert disk_limit(written) == Amount(size_bytes=size_bytes)
    assert str(disk_limit(written)) == f"{size_bytes} bytes"


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", "MB", "10 MB", "10XB", "10iB", "10i", "-1", "-1MB", "1.5GB", "1e9", "1_000"),
        *("absolute", "absolute 0.5", "about 10MB", "relative 10MB", "absolute 10 MB", "nan", "inf"),
        *("1" * 19, "\u0661\u0660MB"),
    ],
)
def test_no_amount(written: str) -> None:
    for read in (disk_limit, memory_watermark):
        with pytest.raises(ValueError, match="."):
            read(written)


def test_a_number_without_a_unit_is_a_share_for_memory_and_bytes_for_disk() -> None:
    """`rabbitmqctl set_vm_memory_high_watermark` and `set_disk_free_limit` take it so."""
    assert memory_watermark("0.6") == Amount(share=0.6)
    assert memory_watermark("1") == Amount(share=1.0)
    assert memory_watermark("0") == Amount(share=0.0)
    assert disk_limit("1") == Amount(size_bytes=1)
    assert disk_limit("1.5") == Amount(share=1.5)
    assert disk_limit("mem_relative 2") == Amount(share=2.0)
    assert memory_watermark("relative 0.5") == Amount(share=0.5)
    assert str(memory_watermark("0.5")) == "0.5 of memory"


@pytest.mark.parametrize("written", ["1.1", "2", "relative 1.01", "1073741824", "512"])
def test_more_than_all_memory_is_no_share(written: str) -> None:
    """So bytes without a unit are not read as a share that is never reached."""
    with pytest.raises(ValueError, match=r"more than all|no share"):
        memory_watermark(written)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("vm_memory_high_watermark = 0.4", "vm_memory_high_watermark", "0.4"),
        ("vm_memory_high_watermark = 1", "vm_memory_high_watermark", "1"),
        ('vm_memory_high_watermark = "512MB"', "vm_memory_high_watermark", "512MB"),
        ("vm_memory_high_watermark.relative = 0.4", "vm_memory_high_watermark", "relative 0.4"),
        ("vm_memory_high_watermark.absolute = 1024", "vm_memory_high_watermark", "absolute 1024"),
        ('vm_memory_high_watermark.absolute = "4Gi"', "vm_memory_high_watermark", "absolute 4Gi"),
        ("disk_free_limit = 50000000", "disk_free_limit", "50000000"),
        ("disk_free_limit.relative = 1.5", "disk_free_limit", "relative 1.5"),
        ('disk_free_limit.absolute = "2GB"', "disk_free_limit", "absolute 2GB"),
    ],
)
def test_the_file_may_spell_them_as_rabbitmq_does(line: str, name: str, value: str, tmp_path: Path) -> None:
    """`NAME.relative` and `NAME.absolute` are RabbitMQ's keys; TOML reads them as a table."""
    file = tmp_path / "broker.toml"
    file.write_text(line)
    assert getattr(Config.load(file=file), name) == value


@pytest.mark.rabbitmq("message_size_limit_SUITE", "default_max_message_size")
def test_config_without_arguments_is_valid_and_is_rabbitmqs() -> None:
    config = Config()
    assert (config.host, config.port) == ("localhost", 5672)
    assert config.flow == FlowSettings(max_link_credit=170, max_incoming_window=400, max_queue_credit=256)
    assert config.users == (User("guest", "guest"),)
    assert config.max_message_size_bytes == 16 * 1024 * 1024


INTEGERS = sorted(name for name, setting in SETTINGS.items() if setting.kind is int)


def make(name: str, value: object) -> object:
    given: dict[str, Any] = {name: value}
    return FlowSettings(**given) if name in FLOW_SETTINGS else Config(**given)


@pytest.mark.parametrize("name", INTEGERS)
def test_every_number_accepts_its_ends_and_nothing_beyond(name: str) -> None:
    setting = SETTINGS[name]
    make(name, setting.minimum)
    make(name, setting.maximum)
    with pytest.raises(ConfigError, match=rf"{name} is {setting.maximum + 1}; must be an integer from "):
        make(name, setting.maximum + 1)
    if setting.zero_means is None or setting.minimum > 1:
        with pytest.raises(ConfigError, match=rf"{name} is {setting.minimum - 1}; must be an integer from "):
            make(name, setting.minimum - 1)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", ["5", 5.0, True, None], ids=repr)
def test_every_number_refuses_other_types(name: str, value: object) -> None:
    if value is None and SETTINGS[name].may_be_none:
        return
    with pytest.raises(ConfigError, match=f"{name} is "):
        make(name, value)


@pytest.mark.parametrize("name", ["max_link_credit", "max_incoming_window", "max_queue_credit"])
def test_flow_settings_range_from_one_to_the_biggest_uint(name: str) -> None:
    assert (FLOW_SETTINGS[name].minimum, FLOW_SETTINGS[name].maximum) == (1, 2**32 - 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"host": ""}, "Config.host is ''; must be a string that is not empty"),
        ({"log_level": "loud"}, "must be one of debug, info, warning, error, critical"),
        ({"log_format": "xml"}, "must be one of console, json"),
        ({"trace_frames": 1}, "Config.trace_frames is 1; must be true or false"),
        ({"users": (User("a", "b"), User("a", "c"))}, "Config.users has 'a' twice"),
        ({"queues": (QueueDeclaration("q"), QueueDeclaration("q"))}, "Config.queues has 'q' twice"),
        ({"users": (User("a", "b"),)}, "'guest', and there is no such user"),
        ({"fault_injection": FaultInjection((("q", 1),))}, "only together with test_mode"),
    ],
)
def test_config_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**given)
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "password"), [("", "x"), ("a\0b", "x"), ("a", ""), ("a", "x\0")])
def test_a_user_has_name_and_password_without_nul(name: str, password: str) -> None:
    with pytest.raises(ConfigError, match="without NUL"):
        User(name, password)


def test_passwords_are_not_shown() -> None:
    assert "hush" not in repr(Config(users=(User("guest", "hush"),), tls_key_password="hush"))
    with pytest.raises(ConfigError) as caught:
        User("a", "hush\0")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "ü" * 128, 5])
def test_a_queue_name_is_1_to_255_bytes(name: Any) -> None:
    with pytest.raises(ConfigError, match="1 to 255 bytes"):
        QueueDeclaration(name)


@pytest.mark.parametrize("arguments", [5, {"x": object()}, {"x": {}}])
def test_queue_arguments_are_plain_values(arguments: Any) -> None:
    with pytest.raises(ConfigError, match="QueueDeclaration.arguments"):
        QueueDeclaration("q", arguments=arguments)


def test_later_overrides_win_setting_by_setting() -> None:
    config = Config(
        overrides=(
            FlowOverride(address="slow*", max_link_credit=10, max_queue_credit=20),
            FlowOverride(container="batch-*", max_link_credit=1000),
        )
    )
    assert config.flow_for("x", "slow-1") == FlowSettings(max_link_credit=10, max_queue_credit=20)
    assert config.flow_for("batch-7", "slow-1") == FlowSettings(max_link_credit=1000, max_queue_credit=20)
    assert config.flow_for("batch-7", "fast") == FlowSettings(max_link_credit=1000)


def test_patterns_are_case_sensitive_and_match_the_whole_address() -> None:
    config = Config(overrides=(FlowOverride(address="/queues/A*", max_link_credit=1),))
    assert config.flow_for("c", "/queues/Ab").max_link_credit == 1
    assert config.flow_for("c", "/queues/ab").max_link_credit == 170
    assert config.flow_for("c", "x/queues/Ab").max_link_credit == 170


@pytest.mark.parametrize("value", [0, 2**32, "50", True, None])
def test_a_bad_value_names_who_asked(value: object) -> None:
    with pytest.raises(ConfigError, match="set max_link_credit is .*from 1 to 4294967295"):
        FlowSettings().changed("max_link_credit", value, source="set max_link_credit")


def test_confirm_delay_is_that_of_the_last_pattern_that_matches() -> None:
    faults = FaultInjection((("slow*", 5), ("slow-2", 7)))
    assert [faults.confirm_delay_ms_for(name) for name in ("slow-1", "slow-2", "fast")] == [5, 7, 0]


@pytest.mark.parametrize("delay", [("", 5), ("q", -1), ("q", "5"), ("q", 3_600_001)])
def test_a_confirm_delay_needs_a_pattern_and_milliseconds(delay: Any) -> None:
    with pytest.raises(ConfigError, match="confirm_delay_ms"):
        FaultInjection((delay,))
