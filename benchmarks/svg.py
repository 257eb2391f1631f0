"""Line charts as SVG, by the standard library alone.

One picture is a grid of panels; every panel has the same lines over the same horizontal axis. Axes are
logarithmic across, linear from zero upwards. Lines differ in colour and in marker, so that the picture
can be read without colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

# Okabe and Ito's colours: distinguishable with every common kind of colour vision.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
INK: Final = "#333333"
GRID: Final = "#E3E3E3"
FONT: Final = "font-family='Helvetica, Arial, sans-serif'"

PANEL_WIDTH: Final = 420
PANEL_HEIGHT: Final = 280
LEFT: Final = 72
RIGHT: Final = 20
TOP: Final = 34
BOTTOM: Final = 54
TITLE_HEIGHT: Final = 44
LEGEND_HEIGHT: Final = 40
# Title and legend need this much, however few panels there are.
WIDTH_MIN: Final = 620


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its name and its points, sorted by x."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]


def nice_ticks(top: float, count: int = 5) -> list[float]:
    """Return round numbers from zero to at least `top`, about `count` of them."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= raw * 0.999)
    return [index * step for index in range(math.ceil(top / step * 0.999) + 1)]


def number(value: float) -> str:
    """Write a tick: thousands as k, millions as M."""
    for limit, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{suffix}"
    return f"{value:g}"


def draw(title: str, legend_title: str, rows: Sequence[Sequence[Panel]]) -> str:
    """Return the picture.

    Args:
        title: above everything.
        legend_title: what distinguishes the lines.
        rows: panels row by row; all rows are as long as the first.
    """
    columns = len(rows[0])
    width = max(columns * PANEL_WIDTH, WIDTH_MIN)
    height = TITLE_HEIGHT + LEGEND_HEIGHT + len(rows) * PANEL_HEIGHT
    size = f"viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size}>",
        f"<rect width='{width}' height='{height}' fill='white'/>",
        _text(16, 28, title, size=17, weight="bold"),
        *_legend(legend_title, [line.name for line in rows[0][0].lines]),
    ]
    for row_index, row in enumerate(rows):
        for column, panel in enumerate(row):
            x, y = column * PANEL_WIDTH, TITLE_HEIGHT + LEGEND_HEIGHT + row_index * PANEL_HEIGHT
            parts.append(f"<g transform='translate({x},{y})'>")
            parts += _panel(panel)
            parts.append("</g>")
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    anchor: str = "start",
    weight: str = "normal",
    more: str = "",
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' font-weight='{weight}' "
        f"text-anchor='{anchor}' fill='{INK}'{more}>{escape(text)}</text>"
    )


def _legend(title: str, names: Sequence[str]) -> list[str]:
    y = TITLE_HEIGHT + LEGEND_HEIGHT / 2
    parts = [_text(16, y + 4, title)]
    x = 16 + 7.0 * len(title) + 12
    for index, name in enumerate(names):
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f"<line x1='{x}' y1='{y}' x2='{x + 28}' y2='{y}' stroke='{colour}' stroke-width='2'/>")
        parts.append(_marker(index, x + 14, y))
        parts.append(_text(x + 34, y + 4, name))
        x += 34 + 7.5 * len(name) + 22
    return parts


def _marker(index: int, x: float, y: float) -> str:
    """Draw the marker of a line: circle, square, triangle, diamond, in turns."""
    colour = COLOURS[index % len(COLOURS)]
    kind = index % 4
    if kind == 0:
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'/>"
    if kind == 1:
        return f"<rect x='{x - 3.6:.1f}' y='{y - 3.6:.1f}' width='7.2' height='7.2' fill='{colour}'/>"
    corners = ((0, -5), (4.8, 3.6), (-4.8, 3.6)) if kind == 2 else ((0, -5.2), (5.2, 0), (0, 5.2), (-5.2, 0))
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f"<polygon points='{points}' fill='{colour}'/>"


def _panel(panel: Panel) -> list[str]:
    """Draw one panel at the origin."""
    xs = sorted({x for line in panel.lines for x, _ in line.points})
    ticks = nice_ticks(max((y for line in panel.lines for _, y in line.points), default=1.0))
    inner_width = PANEL_WIDTH - LEFT - RIGHT
    inner_height = PANEL_HEIGHT - TOP - BOTTOM
    low, high = (math.log10(xs[0]), math.log10(xs[-1])) if xs else (0.0, 1.0)
    if high == low:
        low, high = low - 0.5, high + 0.5

    def across(x: float) -> float:
        # A little room on both sides keeps the markers off the axis.
        return LEFT + inner_width * (0.04 + 0.92 * (math.log10(x) - low) / (high - low))

    def up(y: float) -> float:
        return TOP + inner_height * (1 - y / ticks[-1])

    parts = [_text(LEFT, TOP - 12, panel.title, size=13, weight="bold")]
    for tick in ticks:
        y = up(tick)
        parts.append(
            f"<line x1='{LEFT}' y1='{y:.1f}' x2='{PANEL_WIDTH - RIGHT}' y2='{y:.1f}' stroke='{GRID}'/>"
        )
        parts.append(_text(LEFT - 8, y + 4, number(tick), anchor="end"))
    base = TOP + inner_height
    for x in xs:
        place = across(x)
        parts.append(f"<line x1='{place:.1f}' y1='{base}' x2='{place:.1f}' y2='{base + 5}' stroke='{INK}'/>")
        parts.append(_text(place, base + 19, number(x), anchor="middle"))
    parts.append(f"<line x1='{LEFT}' y1='{TOP}' x2='{LEFT}' y2='{base}' stroke='{INK}'/>")
    parts.append(f"<line x1='{LEFT}' y1='{base}' x2='{PANEL_WIDTH - RIGHT}' y2='{base}' stroke='{INK}'/>")
    parts.append(_text(LEFT + inner_width / 2, PANEL_HEIGHT - 14, panel.x_label, anchor="middle"))
    middle = TOP + inner_height / 2
    turn = f" transform='rotate(-90 18 {middle:.1f})'"
    parts.append(_text(18, middle, panel.y_label, anchor="middle", more=turn))
    for index, line in enumerate(panel.lines):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line.points)
        parts.append(
            f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2' "
            "stroke-linejoin='round'/>"
        )
        parts += [_marker(index, across(x), up(y)) for x, y in line.points]
    return parts
