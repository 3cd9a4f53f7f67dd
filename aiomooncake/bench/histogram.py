"""Latencies in HdrHistograms: no sample is lost, and the tail is as exact as the middle."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from hdrh.histogram import HdrHistogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["SAMPLES_FOR_P99", "Summary", "curve", "merged", "recorded", "summary"]

SAMPLES_FOR_P99 = 10_000
"""Fewer samples than that, and a p99 rests on fewer than a hundred of them."""

# Nanoseconds, from 1 us to 10 minutes, three digits.
_LOWEST, _HIGHEST, _DIGITS = 1_000, 600_000_000_000, 3
_UNIT = 1e-9


class Summary(NamedTuple):
    """Percentiles in seconds."""

    samples: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    mean: float

    @property
    def p99_is_sound(self) -> bool:
        """Whether there are enough samples to speak of a p99."""
        return self.samples >= SAMPLES_FOR_P99


def recorded(seconds: Sequence[float] | NDArray[np.float64]) -> str:
    """The samples as one string: HdrHistogram's V2 encoding, compressed, base64; values are nanoseconds."""
    histogram = _empty()
    nanoseconds = np.clip(np.asarray(seconds, np.float64) / _UNIT, _LOWEST, _HIGHEST).astype(np.int64)
    # Finer than the histogram's own resolution above 1 us, and far fewer calls.
    for value, count in zip(*np.unique(nanoseconds // 500 * 500, return_counts=True), strict=True):
        histogram.record_value(int(value), int(count))
    encoded: bytes = histogram.encode()
    return encoded.decode()


def merged(histograms: Iterable[str]) -> str:
    """One histogram with the samples of all."""
    total = _empty()
    for text in histograms:
        total.decode_and_add(text.encode())
    encoded: bytes = total.encode()
    return encoded.decode()


@lru_cache(maxsize=1024)
def summary(histogram: str) -> Summary:
    """Percentiles of an encoded histogram; all zero when it is empty."""
    decoded = HdrHistogram.decode(histogram.encode())
    samples = decoded.get_total_count()
    if not samples:
        return Summary(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p99, p999 = (decoded.get_value_at_percentile(percent) * _UNIT for percent in (50, 90, 99, 99.9))
    values, counts = _steps(decoded)
    mean = float((values * counts).sum() / samples)
    return Summary(samples, p50, p90, p99, p999, decoded.get_max_value() * _UNIT, mean)


def curve(histogram: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The latency-percentile curve: shares of samples that are slower, descending from 1, and seconds, ascending.

    It ends where ten samples are left: what is beyond would be drawn by single ones.
    """
    values, counts = _steps(HdrHistogram.decode(histogram.encode()))
    total = counts.sum()
    slower = 1 - (np.cumsum(counts) - counts) / max(total, 1)
    kept = slower * total >= min(10, total)
    return slower[kept], values[kept]


def _steps(decoded: HdrHistogram) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The values that occur, in seconds, and how often each does. The library's own iterators take 100 ms for that."""
    counts = np.ctypeslib.as_array(decoded.counts)
    (places,) = np.nonzero(counts)
    values = [decoded.get_highest_equivalent_value(decoded.get_value_from_index(int(place))) for place in places]
    return np.array(values, np.float64) * _UNIT, counts[places].astype(np.float64)


def _empty() -> HdrHistogram:
    return HdrHistogram(_LOWEST, _HIGHEST, _DIGITS)
