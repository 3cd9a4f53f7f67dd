"""The charts. Each function draws one if the result has what it shows."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from ..contenders import (
    AGAIN,
    ENGINE,
    KEY_BY_KEY,
    LOOP_FLOOR,
    NOTHING,
    OFFICIAL,
    RAW_SOCKET,
    WHOLE_POOLS,
    with_connections,
)
from ..histogram import curve
from .series import cpu, p50, select, throughput
from .units import count, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.axes import Axes

    from .palette import Palette
    from .series import Series

__all__ = ["CHARTS", "Chart", "style"]

Draw: TypeAlias = "Callable[[Sequence[Series], Palette], Canvas | None]"

_WIDTH = 4.4  # inches: about what a phone shows, so that 9.5 points stay 9.5
_POINTS = 240
_FLOORS = (LOOP_FLOOR.label, RAW_SOCKET.label, NOTHING.label)


class Chart(NamedTuple):
    """A chart of a report.

    Attributes:
        name: For file names.
        scenario: The scenario whose section it stands in.
        title: What it shows.
        draw: Draws it in a palette; None when the result has nothing to show.
        for_readme: Whether it is one of the main ones.
    """

    name: str
    scenario: str
    title: str
    draw: Draw
    for_readme: bool = False


@contextmanager
def style(palette: Palette) -> Iterator[None]:
    """How all charts look."""
    soft = palette.soft
    options: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "aiomooncake",
        "font.size": 9.5,
        "text.color": palette.ink,
        "axes.facecolor": "none",
        "axes.edgecolor": palette.line,
        "axes.labelcolor": soft,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.color": palette.line,
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "xtick.color": palette.line,
        "ytick.color": palette.line,
        "xtick.labelcolor": soft,
        "ytick.labelcolor": soft,
        "lines.linewidth": 1.8,
        "lines.solid_capstyle": "round",
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
    }
    with mpl.rc_context(options):
        yield


# ---- what several charts share --------------------------------------------------------------------------------------


def _canvas(height: float) -> tuple[Canvas, Axes]:
    canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
    return canvas, canvas.add_subplot()


def _legend(canvas: Canvas, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower left", ncols=2, handlelength=1.6, columnspacing=1.4)


def _durations(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,)))
    axes.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(duration, value)))
    minor = FuncFormatter(lambda value, _: _short(duration, value)) if high < 30 * low else NullFormatter()
    axes.yaxis.set_minor_formatter(minor)
    axes.grid(axis="y")


def _short(show: Callable[[float], str], value: float) -> str:
    """As on an axis: without the zeros that say how exact a measurement is."""
    number, _, unit = show(value).replace(",", "").partition(" ")
    return f"{float(number):g} {unit}".strip() if value else "0"


def _line_style(client: str) -> str:
    return "--" if client in _FLOORS else ":" if client == AGAIN.label else "-"


def _percentiles(chosen: Sequence[Series], palette: Palette) -> Canvas | None:
    """Latency over percentiles, stretched so that each further nine is as wide as the one before."""
    if not chosen:
        return None
    canvas, axes = _canvas(3.5)
    least = 1.0
    for series in chosen:
        slower, seconds = curve(series.histogram)
        step = max(1, len(slower) // _POINTS)
        kept = slice(None, None, step)
        axes.plot(
            1 / slower[kept], seconds[kept], color=palette.of(series.client), label=series.client,
            linestyle=_line_style(series.client), drawstyle="steps-post",
        )  # fmt: skip
        least = min(least, float(slower[-1]))
    axes.set_xscale("log")
    nines = [n for n in (1, 2, 10, 100, 1000, 10_000) if 1 / n >= least]
    axes.xaxis.set_major_locator(FixedLocator([float(n) for n in nines]))
    axes.xaxis.set_minor_locator(NullLocator())
    names = {1: "0", 2: "50", 10: "90", 100: "99", 1000: "99.9", 10_000: "99.99"}
    axes.set_xticks([float(n) for n in nines], [names[n] for n in nines])
    axes.set_xlim(left=1)
    axes.set_xlabel("percentile")
    axes.grid(axis="x")
    _durations(axes)
    _legend(canvas, axes)
    return canvas


def _bars(
    rows: Sequence[tuple[str, float, str]], show: Callable[[float], str], palette: Palette, *, label: str
) -> Canvas | None:
    """A bar for each (name, value, colour), the first on top, with its value behind it."""
    if not rows:
        return None
    canvas, axes = _canvas(0.65 + 0.31 * len(rows))
    names, values, colours = zip(*rows, strict=True)
    places = list(range(len(rows), 0, -1))
    bars = axes.barh(places, values, color=colours, height=0.66)
    axes.bar_label(bars, [show(value) for value in values], padding=3, color=palette.ink, fontsize=9)
    axes.set_yticks(places, names, color=palette.ink)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(values) * 1.2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(show, value)))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(label)
    axes.grid(axis="x")
    return canvas


# ---- the charts -----------------------------------------------------------------------------------------------------


def _single(series: Sequence[Series], palette: Palette) -> Canvas | None:
    return _percentiles([one for one in select(series, "single") if one.client != AGAIN.label], palette)


def _throughput(callers: int, keys: int) -> Draw:
    def draw(series: Sequence[Series], palette: Palette) -> Canvas | None:
        chosen = [
            one
            for one in select(series, "callers", callers=callers, keys=keys, stored="all")
            if one.client not in (AGAIN.label, NOTHING.label)
        ]
        if chosen and keys == 64:
            chosen += select(series, "callers", KEY_BY_KEY)
        rows = [(one.client, one.median(throughput), palette.of(one.client)) for one in chosen]
        return _bars(sorted(rows, key=lambda row: -row[1]), count, palette, label="lookups a second")

    return draw


def _cpu(series: Sequence[Series], palette: Palette) -> Canvas | None:
    chosen = [one for one in select(series, "callers", callers=1000, keys=1, stored="all") if one.client != AGAIN.label]
    rows = [(one.client, one.median(cpu), palette.of(one.client)) for one in chosen]
    return _bars(sorted(rows, key=lambda row: row[1]), duration, palette, label="CPU a lookup")


def _grid(series: Sequence[Series], palette: Palette) -> Canvas | None:
    chosen = [one for one in select(series, "callers", stored="all") if one.client in (ENGINE.label, OFFICIAL.label)]
    sizes = sorted({int(one.load["keys"]) for one in chosen})
    if len({one.load["callers"] for one in chosen}) < 3:
        return None
    canvas, axes = _canvas(3.5)
    for contender in (ENGINE, OFFICIAL):
        for number, keys in enumerate(sizes):
            line = sorted(select(chosen, "callers", contender, keys=keys), key=lambda one: one.load["callers"])
            if line:
                axes.plot(
                    [float(one.load["callers"]) for one in line], [keys * one.median(throughput) for one in line],
                    color=palette.of(contender.label), alpha=1 - 0.2 * number, marker="osD^"[number % 4], markersize=4,
                    label=f"{contender.label}, {keys} keys" if keys > 1 else f"{contender.label}, 1 key",
                )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("callers")
    axes.set_ylabel("keys a second")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(count, value)))
        axis.set_minor_locator(NullLocator())
    axes.grid()
    _legend(canvas, axes)
    return canvas


def _against_load(series: Sequence[Series], palette: Palette) -> Canvas | None:
    swept = [one for one in select(series, "tail", stored="all") if isinstance(one.load["share"], float)]
    if not swept:
        return None
    canvas, axes = _canvas(3.5)
    for client in dict.fromkeys(one.client for one in swept):
        line = sorted((one for one in swept if one.client == client), key=lambda one: one.load["rate"])
        rates = [float(one.load["rate"]) for one in line]
        color = palette.of(client)
        axes.plot(
            rates, [one.latency.p99 for one in line], color=color, marker="o", markersize=4, label=f"{client}, p99"
        )
        axes.plot(rates, [one.latency.p50 for one in line], color=color, linestyle=":", label=f"{client}, p50")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(count, value)))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("lookups a second, planned (64 keys each)")
    _durations(axes)
    _legend(canvas, axes)
    return canvas


def _same_rate(series: Sequence[Series], palette: Palette) -> Canvas | None:
    return _percentiles(select(series, "tail", share="same", stored="all"), palette)


def _growth(series: Sequence[Series], palette: Palette) -> Canvas | None:
    line = sorted(select(series, "bulk", ENGINE), key=lambda one: one.load["keys"])
    if len(line) < 3:
        return None
    canvas, axes = _canvas(3.0)
    keys, seconds = [float(one.load["keys"]) for one in line], [one.median(p50) for one in line]
    axes.plot(
        keys,
        seconds,
        color=palette.of(ENGINE.label),
        marker="o",
        markersize=4,
        clip_on=False,
        label=f"{ENGINE.label}, p50",
    )
    axes.plot(
        keys, [seconds[-1] * number / keys[-1] for number in keys], color=palette.soft, linestyle="--",
        linewidth=1, label="in proportion to the keys",
    )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(count, value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=min(seconds) / 2)
    axes.set_xlabel("keys in one question")
    _durations(axes)
    _legend(canvas, axes)
    return canvas


def _bulk(series: Sequence[Series], palette: Palette) -> Canvas | None:
    chosen = [one for one in select(series, "bulk") if len(select(series, "bulk", keys=one.load["keys"])) > 1]
    rows = [(one.client, int(one.load["keys"]) * one.median(throughput), palette.of(one.client)) for one in chosen]
    return _bars(sorted(rows, key=lambda row: -row[1]), count, palette, label="keys a second")


def _connections(series: Sequence[Series], palette: Palette) -> Canvas | None:
    rows = [
        (f"{one.client}, {one.load['callers']} x {one.load['keys']}", one.median(throughput) * int(one.load["keys"]),
         palette.of(ENGINE.label if one.load["keys"] == 1 else AGAIN.label))
        for load in ({"callers": 1000}, {"callers": 256})
        for count_ in (1, 2, 3, 4)
        for one in select(series, "connections", with_connections(count_), **load)
    ]  # fmt: skip
    return _bars(rows, count, palette, label="keys a second")


def _pythons(series: Sequence[Series], palette: Palette) -> Canvas | None:
    chosen = select(series, "pythons", callers=1000)
    rows = [(one.client, one.median(cpu), palette.of(one.client)) for one in chosen]
    return _bars(rows, duration, palette, label="CPU a lookup, 1000 callers x 1 key")


def _distance(series: Sequence[Series], palette: Palette) -> Canvas | None:
    rows = [
        (f"{one.client}, {one.load['round_trip_ms']:g} ms", one.median(throughput), palette.of(one.client))
        for one in select(series, "distance", callers=1000)
    ]
    return _bars(rows, count, palette, label="lookups a second, 1000 callers x 1 key")


def _far_hybrid(series: Sequence[Series], palette: Palette) -> Canvas | None:
    rows = [
        (
            f"{one.client}, {one.load['pages']} pages, {one.load['round_trip_ms']:g} ms",
            one.latency.p99,
            palette.of(one.client),
        )
        for one in select(series, "distance", layout="hybrid")
    ]
    return _bars(rows, duration, palette, label="p99 of a hybrid lookup, by distance")


def _hybrid(series: Sequence[Series], palette: Palette) -> Canvas | None:
    chosen = [one for one in select(series, "hybrid", callers=1, hit=256) if one.client != AGAIN.label]
    return _percentiles(chosen, palette)


def _keys_asked(scenario: str) -> Draw:
    def draw(series: Sequence[Series], palette: Palette) -> Canvas | None:
        chosen = [one for one in select(series, scenario) if one.client in (ENGINE.label, WHOLE_POOLS.label)]
        if scenario == "hybrid":
            chosen = select(chosen, scenario, callers=1, hit=256)
        rows = [(one.client, one.median(lambda m: m.master_keys), palette.of(one.client)) for one in chosen]
        if rows:
            ideal = chosen[0].median(lambda m: m.ideal_keys or 0.0)
            rows.insert(0, ("ideal", ideal, palette.soft))
        return _bars(rows, count, palette, label="keys asked a lookup")

    return draw


def _trace(series: Sequence[Series], palette: Palette) -> Canvas | None:
    return _percentiles([one for one in select(series, "trace") if one.client != AGAIN.label], palette)


CHARTS = (
    Chart("single", "single", "Latency of one key, one caller", _single, for_readme=True),
    Chart("callers-1000", "callers", "1000 callers x 1 key", _throughput(1000, 1), for_readme=True),
    Chart("callers-256", "callers", "256 callers x 64 keys", _throughput(256, 64)),
    Chart("cpu", "callers", "CPU a lookup, 1000 callers x 1 key", _cpu, for_readme=True),
    Chart("grid", "callers", "Callers and keys", _grid),
    Chart("load", "tail", "Latency against load", _against_load, for_readme=True),
    Chart("same-rate", "tail", "At the highest rate that official async keeps up with", _same_rate, for_readme=True),
    Chart("bulk", "bulk", "Keys a second of one large question", _bulk),
    Chart("growth", "bulk", "Growth with the number of keys", _growth),
    Chart("connections", "connections", "Keys a second by connections (callers x keys)", _connections),
    Chart("pythons", "pythons", "CPU a lookup by interpreter", _pythons),
    Chart("distance", "distance", "Throughput by distance", _distance, for_readme=True),
    Chart("far-hybrid", "distance", "Hybrid lookups by distance", _far_hybrid),
    Chart("hybrid", "hybrid", "Latency of a hybrid lookup", _hybrid),
    Chart("hybrid-keys", "hybrid", "Keys asked against ideal", _keys_asked("hybrid")),
    Chart("trace", "trace", "Latency of a lookup, from its planned start", _trace, for_readme=True),
    Chart("trace-keys", "trace", "Keys asked against ideal", _keys_asked("trace"), for_readme=True),
)
"""In the order of the report."""
