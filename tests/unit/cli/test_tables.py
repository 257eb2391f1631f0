"""Rows as text: the article's box table, JSON, CSV and plain lines."""

from __future__ import annotations

import csv
import io
import json

import pytest

from amqp10broker.cli import tables

ODD = [
    {"name": "a,b\t\x1b[2J", "type": None, "messages": True},
    {"name": '"q"', "type": ["x", "y"], "messages": {"k": 1}},
]


def test_wide_characters_keep_the_columns_straight() -> None:
    """A character of Chinese takes two columns, a combining accent none."""
    lines = tables.render(("n",), [{"n": "队列"}, {"n": "e\u0301t"}, {"n": "abcd"}], "table").splitlines()
    assert lines[3] == "│ 队列 │"
    assert lines[5] == "│ e\u0301t   │"
    assert lines[7] == "│ abcd │"


def test_what_could_steer_a_terminal_is_escaped() -> None:
    """Names come from clients; in tables and plain lines nothing unprintable is shown."""
    for form in ("table", "plain"):
        shown = tables.render(("name",), ODD[:1], form)
        assert "\\x1b[2J" in shown
        assert "\x1b" not in shown


STEERING = ["\x1b[2J", "\x9b2J", "\x7f", "\r", "\u202etxt.exe", "\u2028", "\x00", "\U000e0041"]


@pytest.mark.parametrize("form", tables.FORMATS)
@pytest.mark.parametrize("name", STEERING)
def test_no_form_prints_what_could_steer_a_terminal(form: str, name: str) -> None:
    """Escape sequences of seven and eight bits, line ends, marks that turn the direction of writing."""
    shown = tables.render(("name", "arguments"), [{"name": name, "arguments": {name: name}}], form)
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    if form == "json":
        assert json.loads(shown) == [{"name": name, "arguments": {name: name}}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "\\t=1"),
        ("\r=1", "\\r=1"),
        (["=1", "b"], "'=1, b"),
        ({"=": 1}, '{"=": 1}'),
        ("a=1", "a=1"),
        (-1, "-1"),
        (-1.5, "-1.5"),
    ],
)
def test_no_cell_of_csv_is_a_formula(value: object, text: str) -> None:
    """A client's name must not be computed by whoever opens the listing; numbers stay numbers."""
    shown = tables.render(("name",), [{"name": value}], "csv", header=False)
    assert list(csv.reader(io.StringIO(shown))) == [[text]]


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_a_long_name_takes_several_lines_and_numbers_stay_whole(width: int) -> None:
    """86 characters: broken behind what parts the name, and put together again it is the name."""
    name = "tenant-7/warehouse-north/orders/incoming/region-eu-central-1/priority-high/queue-00042"
    rows = [{"name": name, "messages": 4_294_967_295}, {"name": "short", "messages": 7}]
    lines = tables.render(("name", "messages"), rows, "table", width=width).splitlines()
    assert len(name) == 86
    assert {len(line) for line in lines} == ({80} if width == 80 else {len(name) + 17})
    cells = [[cell.strip() for cell in line.split("│")[1:3]] for line in lines if line.startswith("│")]
    assert "".join(cell for cell, _ in cells[1:-1]) == name
    assert cells[1][1] == "4294967295"
    assert cells[-1] == ["short", "7"]
    assert all(cell.endswith(("-", "/")) for cell, _ in cells[1:-2])
