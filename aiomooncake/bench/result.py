"""A result file: every measured slice with its raw histogram, and what one needs to know to believe it."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any, TypeAlias

from .observer import GC_POLICY

__all__ = ["FORMAT", "Load", "Measurement", "Result", "describe_machine", "describe_versions", "load_result"]

FORMAT = 1
Load: TypeAlias = "dict[str, float | str]"

METHOD = (
    (
        "Every contender runs in a process of its own, connected once, and takes turns with the others: A B C, then"
        " C B A, so that what else the machine does falls on all. Figures are medians over rounds, percentiles are of"
        " the samples of all rounds, ratios are medians of the ratios within each round. The contender marked A/A is"
        " the engine a second time: its ratio to the engine is the noise."
    ),
    (
        "Open loop: arrivals are planned before the run, and latency counts from the planned start, so a stall is"
        " charged to every lookup that was due meanwhile. A lookup that was not answered by the deadline of 1 s counts"
        " as a timeout, with the deadline as its latency."
    ),
    (
        "Closed loop: long-lived callers that ask again when they were answered. The window starts after all of them"
        " were answered once, and after a warm-up."
    ),
    "Keys that are asked for are stored (hits) unless a scenario says otherwise: a miss costs the master far less.",
    (
        "Calls and keys a lookup are the master's own counters. CPU is that of the contender's process, all threads,"
        " its share of generating the load included; the load generator alone is measured too."
    ),
    GC_POLICY,
)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One contender, under one load, in one round.

    Attributes:
        scenario: Name of the scenario.
        client: Label of the contender.
        load: What was asked, and how.
        round: Number of the round; measurements of one round and load were taken one after the other.
        measured: Lookups measured.
        seconds: Length of the measured window.
        achieved: Lookups answered a second.
        cpu_per_lookup: Seconds of CPU in the contender's process.
        gc_seconds: Seconds spent collecting garbage.
        gc_runs: Collections.
        master_calls: Calls that the master counted, a lookup.
        master_keys: Keys that the master counted, a lookup.
        latency: Encoded HdrHistogram (V2, base64) of nanoseconds.
        lag: The same, of how late the contender's loop served a timer.
        offered: Lookups planned a second (open loop).
        timeouts: Lookups not answered by the deadline (open loop).
        errors: Lookups that ended in an error, by its type (open loop).
        outstanding: Most lookups under way at once (open loop).
        ideal_keys: The fewest keys that could have shown the same, a lookup (prompts).
    """

    scenario: str
    client: str
    load: Load
    round: int
    measured: int
    seconds: float
    achieved: float
    cpu_per_lookup: float
    gc_seconds: float
    gc_runs: int
    master_calls: float
    master_keys: float
    latency: str
    lag: str
    offered: float | None = None
    timeouts: int | None = None
    errors: dict[str, int] = field(default_factory=dict)
    outstanding: int | None = None
    ideal_keys: float | None = None


@dataclass(kw_only=True)
class Result:
    """A run of the benchmark.

    Attributes:
        command: What to type to repeat it.
        mode: "quick" or "full".
        date: When it began, ISO 8601, UTC.
        machine: Name and value of what describes the machine.
        versions: The same for the software.
        duration: Seconds that it took.
        clients: What each label stands for.
        measurements: In the order in which they were taken.
    """

    command: str
    mode: str
    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    duration: float = 0.0
    clients: dict[str, str] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)

    def to_json(self) -> str:
        """One measurement a line, so that results can be compared line by line."""
        head = {"format": FORMAT, "method": METHOD, **asdict(self)}
        lines = ",\n".join(
            json.dumps({name: value for name, value in measurement.items() if value not in (None, {})})
            for measurement in head.pop("measurements")
        )
        return f'{json.dumps(head, indent=1)[:-2]},\n "measurements": [\n{lines}\n ]\n}}\n'


def load_result(path: Path) -> Result:
    """Read a result file.

    Raises:
        ValueError: it is none, or of another format.
    """
    data = json.loads(path.read_text())
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{path} is no result file of format {FORMAT}")
    measurements = [Measurement(**measurement) for measurement in data["measurements"]]
    known = {name: data[name] for name in ("command", "mode", "date", "machine", "versions", "duration", "clients")}
    return Result(**known, measurements=measurements)


def describe_machine() -> dict[str, str]:
    """What a number depends on, as far as the system tells."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "network": "loopback",
    }


def describe_versions() -> dict[str, str]:
    """Versions of everything that takes part."""
    versions = {"Python": f"{platform.python_implementation()} {platform.python_version()}"}
    mooncake = packages_distributions().get("mooncake", [])
    for name in ("aiomooncake", *mooncake, "uvloop", "anyio", "numpy", "aiodataloader", "hdrhistogram"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _processor() -> str:
    lines: dict[str, Any] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        lines.setdefault(name.strip(), value.strip())
    return str(lines.get("model name", platform.machine()))
