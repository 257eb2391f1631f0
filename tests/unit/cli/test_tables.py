"""Rows as text: the article's box table, JSON, CSV and plain lines."""

from __future__ import annotations

import csv
import io
import json

import pytest

from amqp10broker.cli import tables

COLUMNS = ("name", "type", "messages")
ARTICLE = [
    {"name": "classic-queue-amqp-091", "type": "classic", "messages": 159077},
    {"name": "quorum-queue-amqp-091", "type": "quorum", "messages": 155782},
    {"name": "classic-queue-amqp-10", "type": "classic", "messages": 1089075},
    {"name": "quorum-queue-amqp-10", "type": "quorum", "messages": 148580},
]
ODD = [
    {"name": "a,b\t\x1b[2J", "type": None, "messages": True},
    {"name": '"q"', "type": ["x", "y"], "messages": {"k": 1}},
]


def test_the_table_of_the_article_is_drawn_to_the_letter() -> None:
    """As ``rabbitmqctl list_queues name type messages --formatter=pretty_table`` draws it."""
    assert tables.render(COLUMNS, ARTICLE, "table") == (
        "┌────────────────────────┬─────────┬──────────┐\n"
        "│ name                   │ type    │ messages │\n"
        "├────────────────────────┼─────────┼──────────┤\n"
        "│ classic-queue-amqp-091 │ classic │ 159077   │\n"
        "├────────────────────────┼─────────┼──────────┤\n"
        "│ quorum-queue-amqp-091  │ quorum  │ 155782   │\n"
        "├────────────────────────┼─────────┼──────────┤\n"
        "│ classic-queue-amqp-10  │ classic │ 1089075  │\n"
        "├────────────────────────┼─────────┼──────────┤\n"
        "│ quorum-queue-amqp-10   │ quorum  │ 148580   │\n"
        "└────────────────────────┴─────────┴──────────┘\n"
    )


def test_a_table_without_header_has_only_rows() -> None:
    """No line for the names of the columns, and widths of the values alone."""
    assert tables.render(("messages",), ARTICLE[:1], "table", header=False) == (
        "┌────────┐\n│ 159077 │\n└────────┘\n"
    )


def test_a_table_without_rows_is_its_header() -> None:
    """And nothing at all without that."""
    assert tables.render(("name",), [], "table") == "┌──────┐\n│ name │\n└──────┘\n"
    assert tables.render(("name",), [], "table", header=False) == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", None, "no such"])
def test_where_boxes_cannot_be_shown_they_are_drawn_in_ascii(encoding: str | None) -> None:
    """Dashes and bars, so that nothing fails on a poor terminal."""
    assert tables.render(("name",), [{"name": "q"}], "table", encoding=encoding) == (
        "+------+\n| name |\n+------+\n| q    |\n+------+\n"
    )


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


def test_plain_is_one_line_a_row_with_tabs() -> None:
    """For cut and awk; a tab within a value is escaped."""
    assert tables.render(COLUMNS, ODD, "plain") == (
        'name\ttype\tmessages\na,b\\t\\x1b[2J\t\ttrue\n"q"\tx, y\t{"k": 1}\n'
    )
    assert tables.render(COLUMNS, ARTICLE[:1], "plain", header=False) == (
        "classic-queue-amqp-091\tclassic\t159077\n"
    )


def test_csv_is_read_back_as_it_was() -> None:
    """Commas and quotes included; what is not printable is escaped."""
    shown = tables.render(COLUMNS, ODD, "csv")
    assert list(csv.reader(io.StringIO(shown, newline=""))) == [
        ["name", "type", "messages"],
        ["a,b\\t\\x1b[2J", "", "true"],
        ['"q"', "x, y", '{"k": 1}'],
    ]
    assert tables.render(COLUMNS, ARTICLE[:1], "csv", header=False) == (
        "classic-queue-amqp-091,classic,159077\n"
    )


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


def test_json_keeps_types_and_has_the_chosen_columns_only() -> None:
    """One object a row, in the order of the columns."""
    assert json.loads(tables.render(("messages", "name"), ARTICLE[:1], "json")) == [
        {"messages": 159077, "name": "classic-queue-amqp-091"}
    ]
    assert json.loads(tables.render(COLUMNS, ODD, "json")) == ODD
    assert tables.render(COLUMNS, [], "json", header=False) == "[]\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (True, "true"), (False, "false"), (0, "0"), (1.5, "1.5"), ([], ""), ({}, ""), ([1], "[1]")],
)
def test_values_as_text(value: object, text: str) -> None:
    """Nothing for nothing, JSON's words for the rest."""
    assert tables.plain(value) == text


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


def test_a_table_of_many_columns_gives_up_being_narrow_before_it_breaks_every_letter() -> None:
    """Eight columns are left for a text; the box is too wide rather."""
    columns = tuple(f"column_{number}" for number in range(9))
    rows = [dict.fromkeys(columns, "text " * 5)]
    widths = {len(line) for line in tables.render(columns, rows, "table", width=40).splitlines()}
    assert widths == {9 * (8 + 3) + 1}


def test_wide_characters_are_broken_by_the_columns_they_take() -> None:
    """Of Chinese, Japanese and Korean each takes two."""
    lines = tables.render(("name",), [{"name": "漢" * 12}], "table", width=14).splitlines()
    assert lines[3:6] == ["│ 漢漢漢漢漢 │", "│ 漢漢漢漢漢 │", "│ 漢漢       │"]
