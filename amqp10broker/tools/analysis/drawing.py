"""The style of the pictures, and their conversion to SVG elements of a page.

Matplotlib draws without a window system and without global state. Colours of ink, grid and paper are CSS
variables, for the page's dark scheme; text stays text, for search and screen readers; ids are unique among
the pictures of a page.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Final

# Okabe and Ito's colours, distinguishable with every common kind of colour vision; the last ones are
# additions.
COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
    "#56B4E9", "#8C6BB1", "#999933", "#882255", "#7A7A7A",
)  # fmt: skip
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
INK: Final = "#24292f"
GRID: Final = "#d7dde3"
WIDTH_IN: Final = 9.6
_VARIABLES: Final = {INK: "var(--ink)", GRID: "var(--grid)"}
_ID: Final = re.compile(r'\bid="([^"]*)"')
_REFERENCE: Final = re.compile(r'(href="#|url\(#)([^")]*)')
_SIZE: Final = re.compile(r'<svg\b[^>]*?\bwidth="([\d.]+)pt"')
# Characters that XML does not allow even escaped; names of queues and cases may contain them.
_CONTROL: Final = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    # Else ids in the picture are random.
    "svg.hashsalt": "amqp10broker",
    # A name with a dollar sign is not a formula.
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


def plain(text: str) -> str:
    """Replace each character that XML does not allow."""
    return _CONTROL.sub("\ufffd", text)


@contextmanager
def style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # It measures texts by its own font, which lacks some letters; viewers have others.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def panels(
    number: int, columns: int | None = None, *, height_in: float, share_y: bool = False
) -> tuple[Any, list[Any]]:
    """Return a figure and this many axes, row by row; in one row if `columns` is None."""
    from matplotlib.figure import Figure

    columns = columns or number
    rows = math.ceil(number / columns)
    figure = Figure(figsize=(WIDTH_IN, height_in * rows), layout="constrained")
    grid = [axes for row in figure.subplots(rows, columns, squeeze=False, sharey=share_y) for axes in row]
    for axes in grid[number:]:
        axes.set_visible(False)
    return figure, grid[:number]


def as_svg(figure: Any, number: int, title: str) -> str:
    """Return the figure as an SVG element for a page."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    raw = io.BytesIO()
    # No date or program name: the same figures give the same file.
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    FigureCanvasSVG(figure).print_svg(raw, metadata=nothing)
    text = plain(raw.getvalue().decode())
    text = text[text.index("<svg") :]
    text = _ID.sub(rf'id="f{number}-\1"', text)
    text = _REFERENCE.sub(rf"\1f{number}-\2", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    found = _SIZE.search(text)
    width = float(found[1]) * 4 / 3 if found else 920.0
    label = escape(title)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}" style="max-width:{width:.0f}px"', 1)


def short_labels(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: shortly(value))


def share_axis(axes: Any) -> None:
    """Make the horizontal axis one of shares."""
    from matplotlib.ticker import PercentFormatter

    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlim(0, 1)


def log_axis(axes: Any, low: float, high: float) -> None:
    """Make the vertical axis logarithmic, with labels at 1, 2 and 5 as far as they fit."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log", nonpositive="clip")
    axes.set_ylim(low / 1.5, high * 1.6)
    narrow = high / low < 100
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,), numticks=12))
    short_labels(axes.yaxis)
    axes.yaxis.set_minor_formatter(NullFormatter())


def setting_axis(axes: Any, values: Sequence[float], name: str, labels: int = 9) -> None:
    """Label the tested values at logarithmic distances, with about `labels` labels at most."""
    from matplotlib.ticker import FixedLocator, NullLocator

    if len(values) > 1:
        axes.set_xscale("log")
        axes.set_xlim(values[0] / 1.25, values[-1] * 1.25)
    axes.xaxis.set_major_locator(FixedLocator(legible(values, labels)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(name)


def legible(values: Sequence[float], labels: int) -> list[float]:
    """Return values with labels that do not overlap on a logarithmic axis: first, last, and those that fit
    between.
    """
    if len(values) < 3:
        return list(values)
    apart = (values[-1] / values[0]) ** (1 / labels)
    kept = [values[0]]
    for value in values[1:-1]:
        if value >= kept[-1] * apart and value * apart <= values[-1]:
            kept.append(value)
    return [*kept, values[-1]]


def shortly(value: float) -> str:
    """Format 1234567 as ``1.23M`` and 12345 as ``12.3k``; small values stay as they are."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def legend_below(figure: Any, axes: Iterable[Any], title: str | None = None, columns: int = 6) -> None:
    found: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=min(columns, len(found)),
            title=title,
        )
