"""The configuration records check themselves, whoever makes them."""

from __future__ import annotations

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
from amqp10broker.config.records import FLOW_SETTINGS, SETTINGS


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


class TestFlowFor:
    def test_later_overrides_win_setting_by_setting(self) -> None:
        config = Config(
            overrides=(
                FlowOverride(address="slow*", max_link_credit=10, max_queue_credit=20),
                FlowOverride(container="batch-*", max_link_credit=1000),
            )
        )
        assert config.flow_for("x", "slow-1") == FlowSettings(max_link_credit=10, max_queue_credit=20)
        assert config.flow_for("batch-7", "slow-1") == FlowSettings(max_link_credit=1000, max_queue_credit=20)
        assert config.flow_for("batch-7", "fast") == FlowSettings(max_link_credit=1000)

    def test_patterns_are_case_sensitive_and_match_the_whole_address(self) -> None:
        config = Config(overrides=(FlowOverride(address="/queues/A*", max_link_credit=1),))
        assert config.flow_for("c", "/queues/Ab").max_link_credit == 1
        assert config.flow_for("c", "/queues/ab").max_link_credit == 170
        assert config.flow_for("c", "x/queues/Ab").max_link_credit == 170


class TestChangedWhileRunning:
    @pytest.mark.parametrize("value", [0, 2**32, "50", True, None])
    def test_a_bad_value_names_who_asked(self, value: object) -> None:
        with pytest.raises(ConfigError, match="set max_link_credit is .*from 1 to 4294967295"):
            FlowSettings().changed("max_link_credit", value, source="set max_link_credit")


def test_confirm_delay_is_that_of_the_last_pattern_that_matches() -> None:
    faults = FaultInjection((("slow*", 5), ("slow-2", 7)))
    assert [faults.confirm_delay_ms_for(name) for name in ("slow-1", "slow-2", "fast")] == [5, 7, 0]


@pytest.mark.parametrize("delay", [("", 5), ("q", -1), ("q", "5"), ("q", 3_600_001)])
def test_a_confirm_delay_needs_a_pattern_and_milliseconds(delay: Any) -> None:
    with pytest.raises(ConfigError, match="confirm_delay_ms"):
        FaultInjection((delay,))
