"""The pictures of the report. Each function draws figures of one group at one rate limit, in the style of
`drawing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events.schema import GENERAL
from amqp10broker.tools.analysis.configurations import (
    SETTINGS,
    ConfigurationFigures,
    Settings,
    describe_settings,
)
from amqp10broker.tools.analysis.drawing import (
    COLOURS,
    INK,
    MARKERS,
    legend_below,
    log_axis,
    panels,
    setting_axis,
    share_axis,
    short_labels,
)
from amqp10broker.tools.analysis.figures import SIDES, reason_name

# A picture with more bars than this is unreadable.
BARS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Swept:
    """The settings that were varied: along the axis, by line, and by panel."""

    x: str
    line: str | None
    panel: str | None

    @staticmethod
    def of(members: Sequence[ConfigurationFigures]) -> Swept | None:
        varied = [name for name in SETTINGS if len(tried(members, name)) > 1]
        if not varied:
            return None
        line, panel = [*varied[1:], None, None][:2]
        return Swept(varied[0], line, panel)

    def __str__(self) -> str:
        *most, last = [name for name in (self.x, self.line, self.panel) if name is not None]
        return f"{', '.join(most)} and {last}" if most else last


def tried(members: Sequence[ConfigurationFigures], name: str) -> list[int]:
    return sorted({value for each in members if (value := each[name]) is not None})


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    title: str
    unit: str
    logarithmic: bool = False


THROUGHPUT: Final = (_Metric("throughput_per_s", "throughput", "messages / s"),)
LATENCY: Final = (
    _Metric("confirm_p99_ms", "confirm latency, p99", "ms (logarithmic)", logarithmic=True),
    _Metric("end_to_end_p99_ms", "end-to-end latency, p99", "ms (logarithmic)", logarithmic=True),
)


def over_setting(
    members: Sequence[ConfigurationFigures],
    swept: Swept,
    metrics: Sequence[_Metric],
    chosen: Settings | None = None,
) -> Any:
    """Draw figures over the first setting, one line per value of the second, with whiskers of 95 %.

    There is one panel per metric and value of the third setting. None if nothing was recorded.
    """
    metrics = [one for one in metrics if any(_drawable(one, each.mean(one.name)) for each in members)]
    if not metrics:
        return None
    cells = [(metric, *facet) for metric in metrics for facet in _apart(members, swept.panel)]
    columns = min(len(cells), 3 if len(cells) != 4 else 2)
    figure, grid = panels(len(cells), columns, height_in=3.4 if len(cells) == columns else 2.9)
    for axes, (metric, facet, shown) in zip(grid, cells, strict=True):
        whiskers = _lines(axes, shown, swept, metric, chosen)
        setting_axis(axes, tried(members, swept.x), swept.x, labels=(14, 9, 6)[columns - 1])
        # Panels of one figure have one scale, so that they can be compared.
        _scale(axes, metric, [mean for each in members if (mean := each.mean(metric.name))])
        _mark_cut(axes, whiskers)
        axes.set_title(metric.title if facet is None else f"{metric.title}\n{swept.panel} {facet}")
        axes.set_ylabel(metric.unit)
    legend_below(figure, grid, swept.line)
    return figure


def _apart(
    members: Sequence[ConfigurationFigures], name: str | None
) -> list[tuple[int | None, list[ConfigurationFigures]]]:
    if name is None:
        return [(None, list(members))]
    return [(value, [each for each in members if each[name] == value]) for value in tried(members, name)]


def _look(place: int) -> dict[str, str]:
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def _drawable(metric: _Metric, mean: float | None) -> bool:
    # A logarithmic axis has no 0.
    return mean is not None and (mean > 0 or not metric.logarithmic)


def _scale(axes: Any, metric: _Metric, means: Sequence[float]) -> None:
    # Limits by the means: with two repetitions a whisker may be ten times as long as the figure.
    top = max(means, default=1.0)
    if metric.logarithmic:
        log_axis(axes, min(means, default=1.0), top)
    else:
        short_labels(axes.yaxis)
        axes.set_ylim(0, top * 1.4)


@dataclass(frozen=True, slots=True)
class _Whisker:
    x: float
    low: float
    high: float
    colour: str


def _mark_cut(axes: Any, whiskers: Sequence[_Whisker]) -> None:
    # Arrows on whiskers that are cut off; none downwards where the axis, and the figure, end at 0.
    bottom, top = axes.get_ylim()
    for each in whiskers:
        for out, at, marker in ((each.high > top, top, "^"), (each.low < bottom > 0, bottom, "v")):
            if out:
                axes.plot(
                    [each.x], [at], marker=marker, markersize=6, color=each.colour, clip_on=False, zorder=5
                )
    axes.set_ylim(bottom, top)


def _lines(
    axes: Any, members: Sequence[ConfigurationFigures], swept: Swept, metric: _Metric, chosen: Settings | None
) -> list[_Whisker]:
    whiskers: list[_Whisker] = []
    name = metric.name
    lines = _apart(members, swept.line)
    for place, (value, own) in enumerate(lines):
        # Coinciding lines are moved apart a little, and the lower ones are thicker.
        moved = 1.03 ** (place - (len(lines) - 1) / 2)
        points = [each for _, at in _apart(own, swept.x) for each in at if name in each.estimates]
        if not points:
            continue
        xs = [each[swept.x] * moved for each in points]
        means = [each.estimates[name].mean for each in points]
        halves = [each.estimates[name].half_width or 0.0 for each in points]
        look = _look(place)
        axes.errorbar(
            xs,
            means,
            yerr=halves if any(halves) else None,
            **look,
            capsize=3,
            elinewidth=1,
            linewidth=max(1.2, 2.8 - 0.4 * place),
            markersize=max(3.5, 6 - 0.6 * place),
            label=None if value is None else str(value),
        )
        for each, x, mean, half in zip(points, xs, means, halves, strict=True):
            if half:
                whiskers.append(_Whisker(x, mean - half, mean + half, look["color"]))
            if each.settings == chosen:
                ring = {"markersize": 14, "markerfacecolor": "none", "markeredgecolor": INK}
                axes.plot(
                    [x], [mean], "o", **ring, markeredgewidth=1.4, linestyle="none", label="recommended"
                )
    return whiskers


_REASON_ORDER: Final = tuple(dict.fromkeys(reason_name(general) for general in GENERAL.values()))


def some(members: Sequence[ConfigurationFigures], chosen: Settings | None) -> list[ConfigurationFigures]:
    """Return as many as fit in a picture of bars: evenly picked, with the first, the last and the
    recommended.
    """
    if len(members) <= BARS_MAX:
        return list(members)
    step = (len(members) - 1) / (BARS_MAX - 2)
    picked = {round(place * step) for place in range(BARS_MAX - 1)}
    picked |= {place for place, each in enumerate(members) if each.settings == chosen}
    return [members[place] for place in sorted(picked)]


def stalls(
    members: Sequence[ConfigurationFigures], chosen: Settings | None, names: Sequence[str] = ()
) -> Any:
    """Draw the share of link time by reason, one bar per configuration; None if no link waited."""
    sides = [
        side
        for side in SIDES.values()
        if any(share > 0 for each in members for (own, _), share in each.stalls.items() if own == side)
    ]
    if not sides:
        return None
    bars = list(reversed(members))
    figure, grid = panels(len(sides), height_in=max(2.0, 0.21 * len(bars) + 1.4), share_y=True)
    labels = list(reversed(names))
    if not labels:
        labels = [
            describe_settings(each.settings) + (" *" if each.settings == chosen else "") for each in bars
        ]
    for axes, side in zip(grid, sides, strict=True):
        lefts = [0.0] * len(bars)
        present = {reason for each in bars for own, reason in each.stalls if own == side}
        for reason in sorted(present - {"none"}, key=_reason_place):
            widths = [each.stalls.get((side, reason), 0.0) for each in bars]
            axes.barh(labels, widths, left=lefts, height=0.74, color=_reason_colour(reason), label=reason)
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        share_axis(axes)
        axes.grid(visible=False, axis="y")
        axes.set_title(f"{side} wait")
        axes.set_xlabel(f"share of the {'links' if side != 'connections' else side}' time")
    if not names:
        # Few bars make a low picture: on one line it would be cut at both ends.
        grid[0].set_ylabel("link credit /\nwindow /\nqueue credit")
    grid[0].margins(y=0.01)
    legend_below(figure, grid)
    return figure


def _reason_place(reason: str) -> int:
    return _REASON_ORDER.index(reason) if reason in _REASON_ORDER else len(_REASON_ORDER)


def _reason_colour(reason: str) -> str:
    return (*COLOURS, "#B8A000", INK)[min(_reason_place(reason), len(COLOURS) + 1)]
