"""The load of the demo, the same for every client: callers, what they ask, and how long it takes them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

__all__ = ["Ask", "all_at_once", "make_questions", "one_at_a_time", "over_and_over"]

Ask: TypeAlias = Callable[[list[str]], Awaitable[Iterable[Any]]]
"""How a client answers: one answer a key, in order, 1 for one that exists; int() reads them."""


def make_questions(callers: int, keys: int) -> list[list[str]]:
    """What each caller asks: `keys` keys that look like page hashes and that nobody else asks for."""
    return [
        [hashlib.sha256(f"demo page {caller} {key}".encode()).hexdigest() for key in range(keys)]
        for caller in range(callers)
    ]


async def all_at_once(ask: Ask, questions: Sequence[list[str]]) -> list[list[int]]:
    """The answers when every caller asks once, at the same time."""
    answers = await asyncio.gather(*(ask(question) for question in questions))
    return [[int(answer) for answer in answered] for answered in answers]


async def over_and_over(ask: Ask, questions: Sequence[list[str]], seconds: float) -> tuple[list[float], float]:
    """Let every caller ask again and again: how long each question took, and how long all of it, in seconds."""
    clock = time.perf_counter
    samples: list[float] = []
    start = clock()
    end = start + seconds

    async def caller(question: list[str]) -> None:
        while (asked := clock()) < end:
            await ask(question)
            samples.append(clock() - asked)

    await asyncio.gather(*map(caller, questions))
    return samples, clock() - start


async def one_at_a_time(ask: Ask, questions: Sequence[list[str]], seconds: float) -> list[float]:
    """How long each question took when nobody else asks, in seconds."""
    clock = time.perf_counter
    samples: list[float] = []
    end = clock() + seconds
    while (asked := clock()) < end:
        await ask(questions[len(samples) % len(questions)])
        samples.append(clock() - asked)
    return samples
