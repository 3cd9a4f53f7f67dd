from __future__ import annotations

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from aiomooncake.bench.histogram import SAMPLES_FOR_P99, curve, merged, recorded, summary

latencies = st.lists(st.floats(2e-6, 100, allow_nan=False), min_size=1, max_size=200)


@given(latencies)
def test_percentiles_are_those_of_the_samples_to_three_digits(samples: list[float]) -> None:
    condensed = summary(recorded(samples))
    ordered = np.sort(samples)

    def rank(percent: float) -> float:
        return float(ordered[max(0, int(np.ceil(percent / 100 * len(ordered) - 1e-9)) - 1)])

    assert condensed.samples == len(samples)
    assert condensed.p50 == pytest.approx(rank(50), rel=2e-3, abs=1.1e-6)
    assert condensed.p99 == pytest.approx(rank(99), rel=2e-3, abs=1.1e-6)
    assert condensed.max == pytest.approx(ordered[-1], rel=2e-3, abs=1.1e-6)
    assert condensed.mean == pytest.approx(np.mean(samples), rel=2e-3, abs=1.1e-6)


@given(latencies, latencies)
def test_merging_is_the_same_as_recording_all_samples_at_once(first: list[float], second: list[float]) -> None:
    assert summary(merged([recorded(first), recorded(second)])) == summary(recorded(first + second))


def test_the_encoding_is_the_standard_one_in_nanoseconds() -> None:
    decoded = HdrHistogram.decode(recorded([0.001, 0.002, 0.003]).encode())
    assert decoded.get_total_count() == 3
    assert decoded.get_value_at_percentile(50) == pytest.approx(2_000_000, rel=1e-3)


def test_an_empty_histogram_is_summed_up_as_zeros() -> None:
    assert summary(recorded([])).samples == 0


def test_a_p99_is_sound_from_ten_thousand_samples_on() -> None:
    assert not summary(recorded([0.001] * (SAMPLES_FOR_P99 - 1))).p99_is_sound
    assert summary(recorded([0.001] * SAMPLES_FOR_P99)).p99_is_sound


@given(latencies)
def test_a_curve_rises_while_fewer_and_fewer_samples_are_slower(samples: list[float]) -> None:
    slower, seconds = curve(recorded(samples))
    assert slower[0] == 1
    assert (np.diff(slower) < 0).all()
    assert (np.diff(seconds) > 0).all()
