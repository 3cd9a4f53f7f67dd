"""The few comparisons that sum a run up."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from ..contenders import AGAIN, ENGINE, LOOP_FLOOR, OFFICIAL, RAW_SOCKET, WHOLE_POOLS
from ..scenarios.bulk import LARGE
from ..scenarios.tail import is_sustained
from .series import all_series, cpu, mean, p50, p99, ratio, select, throughput
from .units import duration, times

if TYPE_CHECKING:
    from ..contenders import Contender
    from ..result import Result
    from .series import Figure, Series

__all__ = ["Headline", "headlines"]


class Headline(NamedTuple):
    """One comparison.

    Attributes:
        text: What is compared.
        value: The outcome.
        spread: The lowest and highest of the rounds; empty where there is one.
        noise: The same ratio between the engine and the engine; empty where that was not measured.
    """

    text: str
    value: str
    spread: str
    noise: str


class _Comparison(NamedTuple):
    text: str
    scenario: str
    load: dict[str, float | str]
    other: Contender
    figure: Figure
    ours_on_top: bool


_COMPARISONS = (
    _Comparison("one caller, one key: p50 / the loop floor's", "single", {}, LOOP_FLOOR, p50, True),
    _Comparison("one caller, one key: p99 / the loop floor's", "single", {}, LOOP_FLOOR, p99, True),
    _Comparison("1000 callers x 1 key: lookups/s / official async's", "callers",
                {"callers": 1000, "keys": 1, "stored": "all"}, OFFICIAL, throughput, True),
    _Comparison("256 callers x 64 keys: lookups/s / official async's", "callers",
                {"callers": 256, "keys": 64, "stored": "all"}, OFFICIAL, throughput, True),
    _Comparison("256 callers x 64 keys, none stored: lookups/s / official async's", "callers",
                {"callers": 256, "keys": 64, "stored": "none"}, OFFICIAL, throughput, True),
    _Comparison(f"{LARGE:,} keys in one question: keys/s / a raw socket's", "bulk", {"keys": LARGE}, RAW_SOCKET,
                throughput, True),
    _Comparison("64 keys, at a rate official async keeps up with: its p99 / ours", "tail",
                {"share": "same", "stored": "all"}, OFFICIAL, p99, False),
    _Comparison("the same, none stored", "tail", {"share": "same", "stored": "none"}, OFFICIAL, p99, False),
    _Comparison("1 ms away, 1000 callers x 1 key: lookups/s / official async's", "distance",
                {"round_trip_ms": 1.0, "callers": 1000}, OFFICIAL, throughput, True),
    _Comparison("six pools x 512 pages: mean of SGLang's way / ours", "hybrid",
                {"callers": 1, "pages": 512, "hit": 256}, WHOLE_POOLS, mean, False),
    _Comparison("trace, six pools: mean of SGLang's way / ours", "trace", {}, WHOLE_POOLS, mean, False),
    _Comparison("trace, six pools: p99 of SGLang's way / ours", "trace", {}, WHOLE_POOLS, p99, False),
)  # fmt: skip


def headlines(result: Result) -> list[Headline]:
    """Those for which this result has the measurements."""
    series = all_series(result)
    found = [line for comparison in _COMPARISONS if (line := _compare(series, comparison)) is not None]
    for lines in (_sustained(result), _hybrid_round_trips(series), _cpu(series)):
        found += lines
    return found


def _compare(series: list[Series], comparison: _Comparison) -> Headline | None:
    ours, theirs, again = (
        select(series, comparison.scenario, contender, **comparison.load)
        for contender in (ENGINE, comparison.other, AGAIN)
    )
    if not ours or not theirs:
        return None
    over, under = (ours[0], theirs[0]) if comparison.ours_on_top else (theirs[0], ours[0])
    outcome = ratio(over, under, comparison.figure)
    if outcome is None:
        return None
    noise = ratio(again[0], ours[0], comparison.figure) if again else None
    return Headline(
        comparison.text,
        times(outcome.median),
        f"{times(outcome.low)} to {times(outcome.high)}" if outcome.rounds > 1 else "",
        f"{times(noise.low)} to {times(noise.high)}" if noise is not None else "",
    )


def _sustained(result: Result) -> list[Headline]:
    """The highest rate of the sweep that each kept up with."""
    lines = []
    for stored, text in (("all", "64 keys"), ("none", "64 keys, none stored")):
        rates = {
            contender: max(
                (
                    measurement.offered or 0.0
                    for measurement in result.measurements
                    if measurement.scenario == "tail"
                    and measurement.load["stored"] == stored
                    and measurement.client == contender.label
                    and is_sustained(measurement)
                ),
                default=0.0,
            )
            for contender in (ENGINE, OFFICIAL)
        }
        if all(rates.values()):
            value = times(rates[ENGINE] / rates[OFFICIAL])
            lines.append(Headline(f"{text}: highest rate kept up with / official async's", value, "", ""))
    return lines


def _hybrid_round_trips(series: list[Series]) -> list[Headline]:
    lines = []
    for one in select(series, "distance", ENGINE, round_trip_ms=1.0, layout="hybrid"):
        rounds = sorted(p99(measurement) * 1e3 for measurement in one.rounds.values())
        text = f"1 ms away, six pools x {one.load['pages']} pages: p99 of a predicted lookup / 1 ms"
        lines.append(Headline(text, times(statistics.median(rounds)), f"{times(rounds[0])} to {times(rounds[-1])}", ""))
    return lines


def _cpu(series: list[Series]) -> list[Headline]:
    found = select(series, "callers", ENGINE, callers=1000, keys=1, stored="all")
    if not found:
        return []
    rounds = sorted(map(cpu, found[0].rounds.values()))
    spread = f"{duration(rounds[0])} to {duration(rounds[-1])}"
    return [Headline("1000 callers x 1 key: CPU a lookup", duration(found[0].median(cpu)), spread, "")]
