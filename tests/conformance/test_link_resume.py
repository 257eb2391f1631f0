"""Attach with the past in mind: names that are attached, unsettled maps, what of a terminus is kept."""

from __future__ import annotations

import pytest

from tests.support.script import ScriptRunner


@pytest.fixture
def script() -> ScriptRunner:
    script = ScriptRunner()
    for command in ("queue q", "publish q 2", "C> BEGIN"):
        script.do(command)
    return script


def test_a_name_is_another_links_in_the_other_direction_and_of_another_container(
    script: ScriptRunner,
) -> None:
    script.do("connect D container=other")
    script.do("D> BEGIN")
    answers = [
        *script.do("C> ATTACH h=1 name=mine source=/queues/q"),
        *script.do("C> ATTACH h=2 name=mine target=/queues/q"),
        *script.do("D> ATTACH h=1 name=mine source=/queues/q"),
    ]
    assert [line for line in answers if "DETACH" in line] == []
    assert len([line for line in answers if "ATTACH name=mine" in line]) == 3


def test_a_map_is_answered_by_an_empty_one_and_no_map_by_none(script: ScriptRunner) -> None:
    """2.6.13: nothing is kept across a detach, so nothing of the client's map is known."""
    (answer,) = script.do("C> ATTACH h=1 source=/queues/q unsettled={tag:accepted}")
    assert "unsettled={}" in answer
    (answer,) = script.do("C> ATTACH h=2 source=/queues/q")
    assert "unsettled" not in answer


def test_a_resumed_delivery_that_is_not_in_our_map_uses_its_credit_and_nothing_else(
    script: ScriptRunner,
) -> None:
    """This holds with or without content, in one frame or in several (2.7.5)."""
    script.do("C> ATTACH h=1 target=/queues/q unsettled={tag:null}")
    assert script.do("C> TRANSFER h=1 did=0 resume=true") == []
    assert script.do("C> TRANSFER h=1 did=1 resume=true more=true ; TRANSFER h=1 did=1") == []
    assert script.do("count q") == ["= ready=2 unsettled=0"]
    assert any("sender credit=168 delivery-count=2 unsettled=0" in line for line in script.do("status C"))
    (disposition,) = script.do("C> TRANSFER h=1 did=2")
    assert disposition.startswith("B> DISPOSITION role=receiver first=2 ")
