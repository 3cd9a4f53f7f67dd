"""Measurements that belong together, and the figures made of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..histogram import merged, summary

if TYPE_CHECKING:
    from ..contenders import Contender
    from ..histogram import Summary
    from ..result import Load, Measurement, Result

__all__ = ["Figure", "Ratio", "Series", "all_series", "cpu", "mean", "p50", "p99", "ratio", "select", "throughput"]

Figure: TypeAlias = Callable[["Measurement"], float]
"""A number made of one measurement."""


class Series:
    """One contender under one load, in all its rounds."""

    def __init__(self, measurements: list[Measurement]) -> None:
        first = measurements[0]
        self.scenario = first.scenario
        self.client = first.client
        self.load: Load = first.load
        self.rounds = {measurement.round: measurement for measurement in measurements}
        self.histogram = merged(measurement.latency for measurement in measurements)
        self.latency: Summary = summary(self.histogram)
        self.lag: Summary = summary(merged(measurement.lag for measurement in measurements))

    def median(self, figure: Figure) -> float:
        """The median over rounds."""
        return statistics.median(map(figure, self.rounds.values()))

    @property
    def timeouts(self) -> int:
        """Of all rounds."""
        return sum(measurement.timeouts or 0 for measurement in self.rounds.values())

    @property
    def errors(self) -> int:
        """Of all rounds."""
        return sum(sum(measurement.errors.values()) for measurement in self.rounds.values())

    @property
    def offered(self) -> float | None:
        """Planned lookups a second, by the median; None in a closed loop."""
        offered = [measurement.offered for measurement in self.rounds.values() if measurement.offered is not None]
        return statistics.median(offered) if offered else None


class Ratio(NamedTuple):
    """How many times as much, as the median of the rounds and its extremes."""

    median: float
    low: float
    high: float
    rounds: int


def all_series(result: Result) -> list[Series]:
    """Every contender under every load, in the order measured."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for measurement in result.measurements:
        key = (measurement.scenario, measurement.client, repr(sorted(measurement.load.items())))
        groups.setdefault(key, []).append(measurement)
    return [Series(group) for group in groups.values()]


def select(
    series: Iterable[Series], scenario: str, contender: Contender | None = None, **load: float | str
) -> list[Series]:
    """Those of a scenario, of a contender if one is given, whose load has these values."""
    return [
        one
        for one in series
        if one.scenario == scenario
        and (contender is None or one.client == contender.label)
        and all(one.load.get(name) == value for name, value in load.items())
    ]


def ratio(over: Series, under: Series, figure: Figure) -> Ratio | None:
    """`figure` of one as a multiple of the other's, round by round; None without a round that has both."""
    ratios = [
        figure(over.rounds[number]) / figure(under.rounds[number])
        for number in over.rounds.keys() & under.rounds.keys()
        if figure(under.rounds[number])
    ]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios)) if ratios else None


def throughput(measurement: Measurement) -> float:
    """Lookups a second."""
    return measurement.achieved


def cpu(measurement: Measurement) -> float:
    """Seconds of CPU a lookup."""
    return measurement.cpu_per_lookup


def p50(measurement: Measurement) -> float:
    """Seconds."""
    return summary(measurement.latency).p50


def p99(measurement: Measurement) -> float:
    """Seconds."""
    return summary(measurement.latency).p99


def mean(measurement: Measurement) -> float:
    """Seconds."""
    return summary(measurement.latency).mean
