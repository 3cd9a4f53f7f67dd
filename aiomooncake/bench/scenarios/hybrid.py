"""Hybrid lookups: six pools, some of which need all pages and some a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import AioMooncakeError
from ..contenders import AGAIN, ENGINE, WHOLE_POOLS
from ..load import PromptLoad
from .base import Scenario

if TYPE_CHECKING:
    from ..session import Session, Settings

__all__ = ["SCENARIO"]

_CONTENDERS = (ENGINE, WHOLE_POOLS, AGAIN)
_LOADS = {
    "quick": (PromptLoad(layout="hybrid", prompts=1, pages=512, hit=256),),
    "full": tuple(
        PromptLoad(layout="hybrid", prompts=prompts, pages=512, hit=hit)
        for prompts in (1, 32)
        for hit in (26, 256, 512)
    ),
}


async def _run(session: Session) -> None:
    for load in _LOADS[session.settings.mode]:
        await session.site.cluster.put(load.stored_keys())
        await session.ready(_CONTENDERS)
        for contender in _CONTENDERS:
            answers = await session.generator(contender).answers(load)
            if answers != [load.hit] * load.prompts:
                raise AioMooncakeError(f"{contender.label} found {answers} pages where {load.hit} are stored")
        async for number, contender in session.turns(_CONTENDERS):
            session.say(f"{load.prompts} callers, {load.hit} of {load.pages} pages stored: {contender.label}")
            await session.closed(SCENARIO.name, contender, load, number)


def _slices(settings: Settings) -> int:
    return settings.rounds * len(_CONTENDERS) * len(_LOADS[settings.mode])


SCENARIO = Scenario(
    "hybrid",
    "Hybrid lookups",
    "Prompts of 512 pages in DeepSeek-V4's layout: six pools, three of which need all pages and three a window of four."
    " The ideal asks each pool for the pages that it needs and the one that ends them.",
    _run,
    _slices,
)
