"""When lookups arrive: planned before the run, so that a slow answer cannot postpone the questions after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["poisson", "scaled"]


def poisson(rate: float, seconds: float, *, seed: int) -> NDArray[np.float64]:
    """Arrivals of independent callers, in seconds from the start, ascending; all before `seconds`.

    Args:
        rate: Mean arrivals a second.
        seconds: Length of the plan.
        seed: The same seed gives the same plan, so that contenders meet the same bursts.
    """
    random = np.random.default_rng(seed)
    # Given their number, the arrivals of a Poisson process are uniform.
    return np.sort(random.uniform(0, seconds, random.poisson(rate * seconds)))


def scaled(timestamps: Sequence[float] | NDArray[np.float64], speed: float) -> NDArray[np.float64]:
    """A trace's own arrivals, `speed` times as fast, in seconds from the first.

    Args:
        timestamps: Milliseconds, ascending.
        speed: 1: as recorded.
    """
    times = np.asarray(timestamps, np.float64)
    offsets: NDArray[np.float64] = (times - times[0]) / (1000 * speed)
    return offsets
