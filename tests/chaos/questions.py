"""What callers ask, with the judge of its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .model import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from aiomooncake import Engine

    from .model import Model, Places, Verdict

__all__ = ["Ask", "Judge", "Maker", "Question", "makers"]

_BAD_KEYS: tuple[Any, ...] = (None, 7, "\ud800", 1.5, ("a",), bytearray(b"a"))


class Question(NamedTuple):
    """A question; `judge` is None when it has no answer, because a key is none."""

    ask: Ask
    judge: Judge | None


def makers(model: Model) -> dict[str, Maker]:
    """What makes a question, for each kind of caller."""
    universe = model.universe
    keys = universe.keys

    def some(rng: Random, count: int) -> Places:
        """Mostly keys that may be stored, duplicates included."""
        generator = np.random.default_rng(rng.getrandbits(64))
        mixed = generator.choice(universe.stored, count)
        never = generator.random(count) < 0.25
        mixed[never] = generator.choice(universe.never, np.count_nonzero(never))
        return mixed

    def of_bits(places: Places) -> Judge:
        def judge(found: Any, asked_at: int, may_miss: bool) -> Verdict:
            return model.certain(places, asked_at).judge_bits(np.atleast_1d(found), may_miss=may_miss)

        return judge

    def batch_of(places: Places) -> Question:
        asked: list[str | bytes] = [keys[place] for place in places]
        return Question(lambda engine, timeout: engine.batch_exists(asked, timeout=timeout), of_bits(places))

    def one(rng: Random) -> Question:
        places = some(rng, 1)
        name = keys[places[0]]
        key = name.encode() if rng.random() < 0.2 else name
        return Question(lambda engine, timeout: engine.exists(key, timeout=timeout), of_bits(places))

    def small(rng: Random) -> Question:
        return batch_of(some(rng, rng.randint(1, 64)))

    def large(rng: Random) -> Question:
        return batch_of(some(rng, rng.randint(257, 10_000)))

    def huge(rng: Random) -> Question:
        places = np.concatenate([universe.stored, universe.never])[:100_000]
        return batch_of(np.roll(places, rng.randrange(len(places))))

    def prefix(rng: Random) -> Question:
        places = np.concatenate(rng.sample(universe.shelves, rng.randint(1, 3)))
        asked = [keys[place] for place in places]

        def judge(length: int, asked_at: int, may_miss: bool) -> Verdict:
            return model.certain(places, asked_at).judge_prefix(length, may_miss=may_miss)

        return Question(lambda engine, timeout: engine.prefix_length(asked, timeout=timeout), judge)

    def prompt(rng: Random) -> Question:
        chosen = rng.choice(universe.prompts)
        pages = rng.randint(1, len(chosen.page_hashes))
        restorable = rng.random() < 0.5
        asked = chosen.page_hashes[:pages]
        return Question(
            lambda engine, timeout: engine.lookup(asked, LAYOUT, restorable=restorable, timeout=timeout),
            lambda result, asked_at, may_miss: model.judge_lookup(chosen, pages, result, asked_at),
        )

    def bad(rng: Random) -> Question:
        key = rng.choice(_BAD_KEYS)
        if rng.random() < 0.5:
            return Question(lambda engine, timeout: engine.exists(key, timeout=timeout), None)
        asked: list[Any] = [keys[place] for place in some(rng, rng.randint(1, 400))]
        asked.insert(rng.randrange(len(asked)), key)
        return Question(lambda engine, timeout: engine.batch_exists(asked, timeout=timeout), None)

    return {
        "exists": one,
        "small batch": small,
        "large batch": large,
        "100k batch": huge,
        "prefix_length": prefix,
        "lookup": prompt,
        "bad key": bad,
    }


if TYPE_CHECKING:
    Ask = Callable[[Engine, float | None], Awaitable[Any]]
    Judge = Callable[[Any, int, bool], Verdict]  # the answer, when it was asked, whether a miss may be a failure
    Maker = Callable[[Random], Question]
