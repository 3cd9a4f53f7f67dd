"""What a measurement costs the process that makes it: CPU, garbage collection, and how late its loop runs."""

from __future__ import annotations

import gc
import time
from typing import NamedTuple

from .alarm import Alarm
from .histogram import recorded

__all__ = ["GC_POLICY", "Observation", "Observer"]

GC_POLICY = (
    "Python's default collector, as in production: before each measurement everything alive is collected and frozen"
    " (gc.collect, gc.freeze), then collection runs by its default thresholds and is timed."
)
_PROBE_INTERVAL = 0.005


class Observation(NamedTuple):
    """Of one measured window.

    Attributes:
        seconds: Its length.
        cpu_seconds: CPU of the whole process, all threads, the load generator's own share included.
        gc_seconds: Time spent collecting garbage.
        gc_runs: Collections of any generation.
        lag: How late the loop served a timer that was due every 5 ms, as an encoded histogram.
    """

    seconds: float
    cpu_seconds: float
    gc_seconds: float
    gc_runs: int
    lag: str


class Observer:
    """Watches the process and the running loop from `start` to `stop`."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._gc_seconds = 0.0
        self._gc_runs = 0

    def start(self) -> None:
        """Begin. Collect and freeze beforehand: see `GC_POLICY`."""
        self._gc_began = time.monotonic()
        gc.callbacks.append(self._collecting)
        self._alarm = Alarm(self._probe)
        self._cpu = time.process_time()
        self._began = time.monotonic()
        self._due = self._began + _PROBE_INTERVAL
        self._alarm.set(self._due)

    def stop(self) -> Observation:
        """End, and tell."""
        seconds, cpu = time.monotonic() - self._began, time.process_time() - self._cpu
        self._alarm.close()
        gc.callbacks.remove(self._collecting)
        return Observation(seconds, cpu, self._gc_seconds, self._gc_runs, recorded(self._lags))

    def _probe(self) -> None:
        now = time.monotonic()
        while self._due <= now:  # each turn that was missed is a sample of its own
            self._lags.append(now - self._due)
            self._due += _PROBE_INTERVAL
        self._alarm.set(self._due)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began = time.monotonic()
        else:
            self._gc_seconds += time.monotonic() - self._gc_began
            self._gc_runs += 1
