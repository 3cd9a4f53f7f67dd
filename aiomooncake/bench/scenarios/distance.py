"""A master that is not on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..contenders import ENGINE, LOOP_FLOOR, OFFICIAL, WHOLE_POOLS
from ..load import KeyLoad, PromptLoad
from .base import Scenario

if TYPE_CHECKING:
    from ..contenders import Contender
    from ..session import Session, Settings

__all__ = ["SCENARIO"]

_ROUND_TRIPS = {"quick": (1.0,), "full": (0.1, 1.0, 5.0)}  # milliseconds
_LOADS: tuple[tuple[int, tuple[Contender, ...]], ...] = (
    (1, (LOOP_FLOOR, ENGINE, OFFICIAL)),
    (1000, (ENGINE, OFFICIAL)),
)
_PROMPTS = tuple(PromptLoad(layout="hybrid", prompts=1, pages=pages, hit=pages // 2) for pages in (64, 256))
_HYBRID = (ENGINE, WHOLE_POOLS)


async def _run(session: Session) -> None:
    for prompt in _PROMPTS:
        await session.site.cluster.put(prompt.stored_keys())
    for round_trip in _ROUND_TRIPS[session.settings.mode]:
        session.say(f"moving the master {round_trip:g} ms away")
        site, added = await session.far_site(round_trip / 1e3)
        marks: dict[str, float | str] = {"round_trip_ms": round_trip, "measured_ms": round(added * 1e3, 4)}
        for callers, contenders in _LOADS:
            load = KeyLoad(keys=1, questions=callers, stored=session.settings.stored)
            async for number, contender in session.turns(contenders, site=site):
                session.say(f"{round_trip:g} ms away, {callers:,} callers: {contender.label}")
                await session.closed(SCENARIO.name, contender, load, number, marks=marks, site=site)
        for prompt in _PROMPTS:
            async for number, contender in session.turns(_HYBRID, site=site):
                session.say(f"{round_trip:g} ms away, prompts of {prompt.pages} pages: {contender.label}")
                await session.closed(SCENARIO.name, contender, prompt, number, marks=marks, site=site)


def _slices(settings: Settings) -> int:
    slices = sum(len(contenders) for _, contenders in _LOADS) + len(_PROMPTS) * len(_HYBRID)
    return settings.rounds * slices * len(_ROUND_TRIPS[settings.mode])


SCENARIO = Scenario(
    "distance",
    "A master that is not on loopback",
    "A proxy in a process of its own delays every byte, so that a round trip takes longer by what is said; what was"
    " really added is measured. Hybrid lookups are of 64 and 256 pages, half of them stored, in six pools.",
    _run,
    _slices,
)
