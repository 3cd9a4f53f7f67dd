"""What is compared, each scenario in a module of its own."""

from __future__ import annotations

from . import bulk, callers, connections, distance, hybrid, pythons, single, tail, trace
from .base import Scenario

__all__ = ["SCENARIOS", "Scenario"]

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        single.SCENARIO,
        callers.SCENARIO,
        tail.SCENARIO,
        bulk.SCENARIO,
        connections.SCENARIO,
        pythons.SCENARIO,
        distance.SCENARIO,
        hybrid.SCENARIO,
        trace.SCENARIO,
    )
}
"""By name, in the order in which they run."""
