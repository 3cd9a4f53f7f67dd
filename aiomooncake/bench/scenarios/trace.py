"""A production trace, replayed against a store that evicts."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from ...errors import StoreError
from ..contenders import AGAIN, ENGINE, WHOLE_POOLS
from ..replay import Part
from .base import Scenario
from .tail import DEADLINE

if TYPE_CHECKING:
    from ..contenders import Contender
    from ..session import Session, Settings, Site

__all__ = ["SCENARIO"]

_CONTENDERS = (ENGINE, WHOLE_POOLS, AGAIN)
_SEGMENT_BYTES = 64 << 20
# Of the objects that a replay stores, how many the segment can hold.
_KEPT = 0.25
_WARM_UP = 0.1
_ROUNDS = 1


async def _run(session: Session) -> None:
    settings = session.settings
    session.say("starting a master that will have to evict")
    site = await session.start_cluster(segment_bytes=_SEGMENT_BYTES)
    contenders = _contenders(settings)
    async for number, contender in session.turns(contenders, rounds=_ROUNDS, site=site):
        part = Part(
            trace=str(settings.trace),
            run=f"{contender.label} {number}",
            layout="hybrid",
            count=settings.trace_requests,
            warm_up=round(_WARM_UP * settings.trace_requests),
            speed=settings.trace_speed,
        )
        session.say(f"{part.count:,} requests of the trace: {contender.label}")
        await _replay(session, site, contender, part, number)


async def _replay(session: Session, site: Site, contender: Contender, part: Part, number: int) -> None:
    value = bytes(max(1, round(_SEGMENT_BYTES / (_KEPT * part.objects()))))
    send, receive = anyio.create_memory_object_stream[int](part.count)

    async def store() -> None:
        async with receive:
            async for request in receive:
                with suppress(StoreError):  # nothing was evicted in time: the pages are not stored
                    await site.cluster.put(part.stored_keys(request), value)

    async with anyio.create_task_group() as group:
        group.start_soon(store)
        with send:
            await session.measure(
                SCENARIO.name,
                contender,
                {"requests": part.count, "speed": part.speed, "layout": part.layout},
                number,
                lambda generator: generator.replay(part, deadline=DEADLINE, answered=send.send_nowait),
                site=site,
            )


def _contenders(settings: Settings) -> tuple[Contender, ...]:
    return _CONTENDERS[:2] if settings.mode == "quick" else _CONTENDERS


def _slices(settings: Settings) -> int:
    return _ROUNDS * len(_contenders(settings))


SCENARIO = Scenario(
    "trace",
    "A production trace",
    "Mooncake's conversation trace (FAST'25), faster than recorded: each request looks up its prompt in DeepSeek-V4's"
    " six pools, and its pages are stored when it was answered, in a store that can hold a quarter of them and evicts.",
    _run,
    _slices,
)
