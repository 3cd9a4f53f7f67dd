from __future__ import annotations

import numpy as np
import pytest

from aiomooncake.bench.arrivals import poisson, scaled
from aiomooncake.bench.replay import TRACE, Part, load_trace


def test_poisson_arrivals_have_the_rate_and_the_spread_of_independent_callers() -> None:
    arrivals = poisson(10_000, 20, seed=1)
    gaps = np.diff(arrivals)
    assert len(arrivals) == pytest.approx(200_000, rel=0.01)
    assert gaps.min() >= 0
    # Exponential gaps: the standard deviation is the mean.
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.02)


def test_the_same_seed_plans_the_same_arrivals() -> None:
    assert np.array_equal(poisson(100, 5, seed=3), poisson(100, 5, seed=3))
    assert not np.array_equal(poisson(100, 5, seed=3)[:50], poisson(100, 5, seed=4)[:50])


def test_a_trace_is_scaled_in_time_from_its_first_request() -> None:
    assert scaled([3000, 3000, 9000], 12.0).tolist() == [0.0, 0.0, 0.5]


def test_requests_of_one_recorded_step_are_spread_over_it() -> None:
    part = Part(trace=str(TRACE), first=1000, count=500, layout="plain", warm_up=100, speed=10.0)
    arrivals = part.arrivals()
    assert len(arrivals) == 500
    assert (np.diff(arrivals) > 0).all()
    assert part.requests == load_trace()[1000:1500]
    recorded = np.array([request.timestamp for request in part.requests]) / 10_000
    recorded -= recorded[0]
    # Steps are 3 s, give or take a millisecond of the recording.
    assert (arrivals >= recorded - 1e-3).all()
    assert (arrivals < recorded + 0.3 + 1e-3).all()


def test_what_was_not_found_is_stored_between_two_recorded_steps() -> None:
    part = Part(trace=str(TRACE), first=0, count=200, layout="hybrid", warm_up=0, speed=10.0)
    times = [round(request.timestamp / 3000) for request in part.requests]
    assert part.pauses() == [number for number in range(1, 200) if times[number] != times[number - 1]]
    pages = 8 * len(part.requests[5].blocks)
    assert len(part.new_keys(5, 0)) == 6 * pages
    assert len(part.new_keys(5, pages - 2)) == 6 * 2
    assert set(part.new_keys(5, 3)) < set(part.new_keys(5, 0))
