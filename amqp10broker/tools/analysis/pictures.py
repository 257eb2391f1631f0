"""The pictures of the report. Each function draws figures of one group at one rate limit, in the style of
`drawing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events.schema import CONFIGURATION
from amqp10broker.tools.analysis.configurations import (
    SETTINGS,
    Compared,
    ConfigurationFigures,
    Settings,
    describe_settings,
)
from amqp10broker.tools.analysis.drawing import (
    COLOURS,
    INK,
    MARKERS,
    bar_axis,
    legend_below,
    log_axis,
    panels,
    setting_axis,
    share_axis,
    short_labels,
    shortly,
)
from amqp10broker.tools.analysis.figures import CONFIRM, END_TO_END, SIDES, in_milliseconds
from amqp10broker.tools.analysis.histogram import quantile, quantiles
from amqp10broker.tools.analysis.statistics import Estimate
from amqp10broker.tools.analysis.tables import CURVE

GREEN: Final = COLOURS[2]
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
    # Multiplier into the unit of the axis.
    factor: float = 1.0
    scale: Literal["number", "log", "share"] = "number"


THROUGHPUT: Final = (_Metric("throughput_per_s", "throughput", "messages / s"),)
UTILISATION: Final = (
    _Metric("credit_utilisation", "link credit used", "share of max_link_credit", scale="share"),
    _Metric("window_utilisation", "window used", "share of max_incoming_window", scale="share"),
    _Metric("queue_credit_utilisation", "queue credit used", "share of max_queue_credit", scale="share"),
)
LATENCY: Final = (
    _Metric("confirm_p99_ms", "confirm latency, p99", "ms (logarithmic)", scale="log"),
    _Metric("end_to_end_p99_ms", "end-to-end latency, p99", "ms (logarithmic)", scale="log"),
)
RESOURCES: Final = (
    _Metric("memory_max_bytes", "resident memory, maximum", "MB", factor=1e-6),
    _Metric("cpu_us_per_message", "processor time", "µs / message (logarithmic)", scale="log"),
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
        _scale(axes, metric, [mean * metric.factor for each in members if (mean := each.mean(metric.name))])
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
    return mean is not None and (mean > 0 or metric.scale != "log")


def _scale(axes: Any, metric: _Metric, means: Sequence[float]) -> None:
    # Limits by the means: with two repetitions a whisker may be ten times as long as the figure.
    top = max(means, default=1.0)
    match metric.scale:
        case "share":
            share_axis(axes)
        case "log":
            log_axis(axes, min(means, default=1.0), top)
        case "number":
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
    name, factor = metric.name, metric.factor
    lines = _apart(members, swept.line)
    for place, (value, own) in enumerate(lines):
        # Coinciding lines are moved apart a little, and the lower ones are thicker.
        moved = 1.03 ** (place - (len(lines) - 1) / 2)
        points = [each for _, at in _apart(own, swept.x) for each in at if name in each.estimates]
        if not points:
            continue
        xs = [each[swept.x] * moved for each in points]
        means = [each.estimates[name].mean * factor for each in points]
        halves = [(each.estimates[name].half_width or 0.0) * factor for each in points]
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


def heat(members: Sequence[ConfigurationFigures], swept: Swept, chosen: Settings | None) -> Any:
    """Draw the throughput of every combination of two settings; None if only one was varied."""
    means = [mean for each in members if (mean := each.mean("throughput_per_s")) is not None]
    if swept.line is None or not means:
        return None
    facets = _apart(members, swept.panel)
    xs, ys = tried(members, swept.x), tried(members, swept.line)
    figure, grid = panels(len(facets), min(len(facets), 2), height_in=max(1.9, 0.42 * len(ys) + 1.2))
    for axes, (facet, shown) in zip(grid, facets, strict=True):
        places = {
            (xs.index(each[swept.x]), ys.index(each[swept.line])): each
            for each in shown
            if each[swept.x] in xs and each[swept.line] in ys
        }
        _heat_cells(axes, places, max(means), chosen)
        axes.set_xlim(0, len(xs))
        axes.set_ylim(0, len(ys))
        axes.set_xticks([place + 0.5 for place in range(len(xs))], [str(x) for x in xs])
        axes.set_yticks([place + 0.5 for place in range(len(ys))], [str(y) for y in ys])
        axes.set_xlabel(swept.x)
        # on one line it is longer than a low picture is high
        axes.set_ylabel(swept.line.replace("_", "_\n", 1))
        title = "throughput, messages / s"
        axes.set_title(title if facet is None else f"{title}; {swept.panel} {facet}")
    return figure


def _heat_cells(
    axes: Any, places: Mapping[tuple[int, int], ConfigurationFigures], top: float, chosen: Settings | None
) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colours = colormaps["cividis"]
    for (column, row), each in sorted(places.items(), key=lambda found: found[0]):
        mean = each.mean("throughput_per_s")
        if mean is None:
            continue
        share = mean / top if top else 0.0
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colours(share), edgecolor="none"))
        ink = "#101418" if share > 0.55 else "#f4f6f8"
        middle = {"ha": "center", "va": "center"}
        axes.text(column + 0.5, row + 0.5, shortly(mean), **middle, fontsize=9, color=ink)
        if each.settings == chosen:
            corner = column + 0.04, row + 0.05
            axes.add_patch(Rectangle(corner, 0.92, 0.9, fill=False, edgecolor="#D55E00", linewidth=2.4))
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def latency_curves(curves: Sequence[tuple[str, ConfigurationFigures]]) -> Any:
    """Draw the quantiles of latency of each pair of name and figures; None if none was recorded."""
    # A logarithmic axis has no 0, which occurs if a broker confirms within one iteration of a session.
    wanted = [
        name
        for name in (CONFIRM, END_TO_END)
        if any((quantile(each.histograms.get(name, {}), 0.5) or 0.0) > 0 for _, each in curves)
    ]
    if not wanted:
        return None
    figure, grid = panels(len(wanted), height_in=3.6)
    for axes, name in zip(grid, wanted, strict=True):
        for place, (label, each) in enumerate(curves):
            counts = each.histograms.get(name, {})
            messages = sum(counts.values())
            # The last ten messages are not a distribution.
            shares = [share for share in CURVE if share >= 0.5 and messages * (1 - share) >= 10]
            points = [
                (_nines(share), value)
                for share, value in zip(shares, in_milliseconds(quantiles(counts, shares)), strict=True)
                if value
            ]
            axes.plot(
                [x for x, _ in points],
                [value for _, value in points],
                label=label,
                **_look(place),
                markersize=4,
            )
        log_axis(axes, *_ends(curves, name))
        ticks = (0.5, 0.9, 0.99, 0.999, 0.9999)
        axes.set_xticks([_nines(share) for share in ticks], [f"{share * 100:g} %" for share in ticks])
        axes.set_title(f"{name} latency")
        axes.set_xlabel("share of messages that took at most …")
        axes.set_ylabel("… ms (logarithmic)")
    legend_below(figure, grid, "max_link_credit / max_incoming_window / max_queue_credit", columns=2)
    return figure


def _ends(curves: Sequence[tuple[str, ConfigurationFigures]], name: str) -> tuple[float, float]:
    ends = [in_milliseconds(quantiles(each.histograms.get(name, {}), (0.5, 0.9999))) for _, each in curves]
    known = [(low, high) for low, high in ends if low and high]
    return min((low for low, _ in known), default=1.0), max((high for _, high in known), default=1.0)


def _nines(share: float) -> float:
    return -math.log10(1 - share)


_REASON_ORDER: Final = (
    "credit withheld", "no credit", "peer window closed", "blocked by alarm", "queue empty",
    "queue credit in flight", "writer blocked", "not active", "draining", "credit flow", "prefetch full",
    "unsettled here", "unsettled elsewhere", "messages not synced", "messages delayed",
    "delivery unfinished", "reader held", "method in flight", "timed out",
    "unsettled incomplete", "no leader",
)  # fmt: skip


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
        share_axis(axes, "x")
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


def comparison(compared: Sequence[Compared], unit: str, chosen: Settings | None) -> Any:
    """Draw the difference between each configuration and the best, with its interval."""
    bars = list(reversed(compared[:BARS_MAX]))
    figure, grid = panels(1, height_in=max(1.8, 0.21 * len(bars) + 1.0))
    axes = grid[0]
    names = []
    scale = 1 / compared[0].best_mean if compared[0].best_mean else 0.0
    for place, each in enumerate(bars):
        settings = tuple(each.configuration[CONFIGURATION.index(name)] for name in SETTINGS)
        names.append(describe_settings(settings) + ("  (recommended)" if settings == chosen else ""))
        colour = {True: COLOURS[1], False: COLOURS[0], None: COLOURS[9]}[each.distinguishable]
        if each.low is not None and each.high is not None:
            axes.plot([each.low * scale, each.high * scale], [place, place], color=colour, linewidth=1.4)
        axes.plot([each.relative], [place], marker="o", linestyle="none", color=colour)
    _legend_of_comparison(axes)
    axes.axvline(0, color=INK, linewidth=0.9)
    axes.axvspan(-0.05, 0.05, color=GREEN, alpha=0.12, linewidth=0)
    # By the points: with two repetitions an interval may be many times as long as the difference.
    reach = 1.3 * max(abs(each.relative) for each in bars) + 0.1
    ends = [end * scale for each in bars for end in (each.low, each.high) if end is not None]
    low, high = max(min([*ends, -0.1]) * 1.1, -reach), min(max([*ends, 0.1]) * 1.1, reach)
    # Nothing is more than 100 % below another.
    axes.set_xlim(max(low, -1.08), high)
    bar_axis(axes, names, 0.7)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * 100:+.0f} %" if abs(value) > 1e-9 else "0 %")
    axes.set_title(f"difference to the best ({shortly(compared[0].best_mean)} {unit})")
    legend_below(figure, [axes], columns=4)
    return figure


def _legend_of_comparison(axes: Any) -> None:
    for colour, label in (
        (COLOURS[1], "told apart from the best"),
        (COLOURS[0], "not told apart"),
        (COLOURS[9], "the best, or one repetition: no interval"),
    ):
        axes.plot([], [], marker="o", linestyle="none", color=colour, label=label)
    axes.fill_between([], [], color=GREEN, alpha=0.12, linewidth=0, label="within 5 %")


def rates(cases: Sequence[tuple[str, Mapping[str, Estimate]]]) -> Any:
    """Draw the rate of each stream of each named case, one below the other; None if none is known."""
    names = sorted({name for _, known in cases for name in known})
    if not names:
        return None
    width = 0.8 / len(names)
    figure, grid = panels(1, height_in=max(1.9, (0.13 + 0.13 * len(names)) * len(cases) + 1.2))
    axes = grid[0]
    for number, name in enumerate(names):
        shown = [(place, known[name]) for place, (_, known) in enumerate(reversed(cases)) if name in known]
        halves = [each.half_width or 0.0 for _, each in shown]
        axes.barh(
            [place + ((len(names) - 1) / 2 - number) * width for place, _ in shown],
            [each.mean for _, each in shown],
            xerr=halves if any(halves) else None,
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": INK},
            height=width * 0.92,
            color=COLOURS[number % len(COLOURS)],
            label=name,
        )
    bar_axis(axes, [label for label, _ in reversed(cases)], 0.6)
    short_labels(axes.xaxis)
    axes.set_xlim(0, max(each.mean for _, known in cases for each in known.values()) * 1.2 or 1.0)
    axes.set_xlabel("messages / s")
    axes.set_title("rate")
    if len(names) > 1:
        legend_below(figure, grid, "stream")
    return figure
