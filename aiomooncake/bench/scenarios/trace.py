"""A production trace, replayed against a store that evicts."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from ...errors import StoreError
from ..contenders import ENGINE, WHOLE_POOLS
from ..replay import Part, load_trace
from ..session import in_turns
from .base import Scenario
from .tail import DEADLINE

if TYPE_CHECKING:
    from ..contenders import Contender
    from ..session import Session, Settings, Site

__all__ = ["SCENARIO"]

_CONTENDERS = (ENGINE, WHOLE_POOLS)
_SEGMENT_BYTES = 64 << 20
# Of the objects that a replay stores, how many the segment can hold.
_KEPT = 0.25
_WARM_UP = 0.06
# The master evicts above this part of its memory (its default), and looks every 10 ms.
_WATERMARK = 0.9
_LOOK = 0.012
_PATIENCE = 5.0


async def _run(session: Session) -> None:
    settings = session.settings
    count = min(settings.trace_requests, len(load_trace(settings.trace)))
    for number, contender in in_turns(_CONTENDERS, _rounds(settings)):
        part = Part(
            trace=str(settings.trace),
            first=number * count,
            count=count,
            layout="hybrid",
            warm_up=round(_WARM_UP * count),
            speed=settings.trace_speed,
        )
        session.say(f"requests {part.first:,} to {part.first + part.count:,} of the trace: {contender.label}")
        async with session.fresh_site(segment_bytes=_SEGMENT_BYTES) as site:
            await session.ready([contender], site)
            await _replay(session, site, contender, part, number)


async def _replay(session: Session, site: Site, contender: Contender, part: Part, number: int) -> None:
    value = bytes(max(1, round(_SEGMENT_BYTES / (_KEPT * part.objects()))))

    async def store(answered: list[tuple[int, int]]) -> None:
        for request, found in answered:
            with suppress(StoreError):  # nothing was evicted in time: the pages are not stored
                await site.cluster.put(part.new_keys(request, found), value)
        await _evicted(site)

    await session.measure(
        SCENARIO.name,
        contender,
        {"requests": part.count, "speed": part.speed, "layout": part.layout},
        number,
        lambda generator: generator.replay(part, deadline=DEADLINE, store=store),
        site=site,
    )


async def _evicted(site: Site) -> None:
    """Wait until the master has evicted what it wants to: it holds up whoever asks meanwhile, by 30 ms and more."""
    before = None
    with anyio.move_on_after(_PATIENCE):
        while True:
            await anyio.sleep(_LOOK)
            metrics = await site.cluster.metrics()
            used = metrics["master_allocated_bytes"]
            if used == before and used <= _WATERMARK * metrics["master_total_capacity_bytes"]:
                return
            before = used


def _rounds(settings: Settings) -> int:
    """As many as there are, or as the trace has requests for: each replays those after the last one's."""
    most = 1 if settings.mode == "quick" else settings.rounds
    return min(most, max(1, len(load_trace(settings.trace)) // settings.trace_requests))


def _slices(settings: Settings) -> int:
    return _rounds(settings) * len(_CONTENDERS)


SCENARIO = Scenario(
    "trace",
    "A production trace",
    "Mooncake's conversation trace (FAST'25), faster than recorded: each request looks up its prompt in"
    " DeepSeek-V4's six pools. Every turn has a master of its own that starts empty, and each round the requests"
    " after the last round's. After each step of the trace's clock (3 s as recorded) the pages that were not found"
    " are stored, in a store that can hold a quarter of all and evicts. The clock stands still meanwhile: in"
    " production others store, and here that would take both the cores and the master from whoever asks.",
    _run,
    _slices,
)
