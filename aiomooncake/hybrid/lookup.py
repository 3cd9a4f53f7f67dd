"""The awaits between plan and fold. Every round is one question that holds the keys of all pools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from ..errors import StoreError
from ..keys import KeyRun, ObjectKeys
from ..reply import Reply
from .plan import Plan
from .result import LookupResult
from .tracks import LeadingTrack

if TYPE_CHECKING:
    from ..layout import Layout
    from ..predictor import Predictor
    from .plan import Fault, Span

__all__ = ["FIRST_WINDOW", "Ask", "Lookup", "Prefix", "lookup", "prefix_length"]

Ask: TypeAlias = Callable[[Sequence[str | bytes]], Awaitable[Reply]]

# Pages (or keys) in the first window when nothing better is known. On a conversation trace 32 asks 1.3 times the keys
# needed in 1.6 round trips (benchmarks/trace_replay.py); less means fewer keys in more round trips, more the opposite.
FIRST_WINDOW = 32


class Lookup(NamedTuple):
    """A finished lookup: its result, and the keys that a wrong prediction asked in vain (part of `keys_queried`)."""

    result: LookupResult
    keys_in_vain: int


class Prefix(NamedTuple):
    """A finished prefix query over plain keys; `degraded` is the code that ended it, when an error did."""

    length: int
    keys_queried: int
    round_trips: int
    degraded: int | None


async def lookup(
    ask: Ask,
    page_hashes: Sequence[str],
    layout: Layout,
    *,
    predictor: Predictor | None = None,
    restorable: bool = False,
    errors: Literal["raise", "miss"] = "raise",
    first_window: int = FIRST_WINDOW,
    later: Callable[[Iterator[None]], object] | None = None,
) -> Lookup:
    """Find the longest prefix of these pages that every pool of the layout can restore.

    At most one question is out at a time, so cancellation leaves nothing behind; what `ask` raises passes through.

    Args:
        ask: Answers existence of keys, in their order.
        page_hashes: The pages of the prompt from its first on, bare.
        layout: Pools, policies and the spelling of keys.
        predictor: Chooses what is asked first, and learns from the answer; None: two phases, in windows that double.
        restorable: Find every usable length (trailing pools are then asked for all pages), not only the longest.
        errors: What a key's error code means when the answer depends on it. "raise": nothing certain can be said.
            "miss": it counts as a miss, and `degraded` is its code; the pages before it and every prefix that does
            not need it are as certain as ever. Errors that cannot change the answer, such as one behind a certain
            miss, are ignored either way.
        first_window: Pages in the first window when nothing better is known.
        later: Takes what need not delay the answer, learning from it, in steps to be done; None: it is done here.

    Raises:
        StoreError: `kv_pages`, `pages` or `restorable` depends on a key that was answered with an error code.
        InvalidKeyError: A page hash is not a string.
    """
    is_ascii = _check_page_hashes(page_hashes, layout)
    forecast = None if predictor is None else predictor.forecast(page_hashes, layout)
    plan = Plan(
        layout,
        len(page_hashes),
        restorable=restorable,
        first_window=first_window,
        expected=None if forecast is None else forecast.pages,
        cautious=forecast is not None and forecast.cautious,
    )
    asked = 0
    while spans := plan.next_spans():
        keys = _keys(spans, page_hashes, layout, is_ascii=is_ascii)
        asked += len(keys)
        plan.fold(spans, await ask(keys))
    verdict = plan.verdict()
    if verdict.fault is None:
        if predictor is not None and forecast is not None:
            lesson = predictor.lesson(forecast, verdict.boundary)
            if later is not None:
                later(lesson)
            else:
                for _ in lesson:
                    pass
    elif verdict.decisive and errors == "raise":
        raise StoreError(verdict.fault.code, key=_key(verdict.fault, page_hashes, layout), count=plan.faults)
    result = LookupResult(
        kv_pages=verdict.kv_pages,
        pages=verdict.pages,
        pool_pages=verdict.pool_pages,
        restorable=verdict.restorable,
        keys_queried=asked,
        round_trips=plan.rounds,
        degraded=None if verdict.fault is None else verdict.fault.code,
    )
    return Lookup(result, plan.in_vain())


async def prefix_length(
    ask: Ask,
    keys: Sequence[str | bytes],
    *,
    errors: Literal["raise", "miss"] = "raise",
    first_window: int = FIRST_WINDOW,
) -> Prefix:
    """Count the leading keys that exist, asking in windows that double until one is not full.

    Args:
        ask: Answers existence of keys, in their order.
        keys: Object keys as they stand in Mooncake.
        errors: What it means that the first key that is not a hit was answered with an error code: "raise", or "miss":
            the prefix ends there and `degraded` is the code.
        first_window: Keys in the first window.

    Raises:
        StoreError: The prefix ends at an error.
    """
    track = LeadingTrack(1)
    rounds, degraded = 0, None
    while not track.ended and (start := track.asked) < len(keys):
        stop = min(len(keys), start + (first_window << rounds))
        reply = await ask(keys[start:stop])
        track.fold(start, stop, reply.bits)
        rounds += 1
        if track.uncertain:
            degraded = reply.errors[track.run - start]
            if errors == "raise":
                raise StoreError(degraded, key=keys[track.run], count=len(reply.errors))
    return Prefix(track.run, track.asked, rounds, degraded)


def _key(fault: Fault, page_hashes: Sequence[str], layout: Layout) -> str:
    return layout.object_keys(page_hashes[fault.page : fault.page + 1], layout.pools[fault.pool].name)[fault.item]


def _keys(spans: list[Span], page_hashes: Sequence[str], layout: Layout, *, is_ascii: bool) -> ObjectKeys:
    affixes = layout.affixes
    pages: dict[tuple[int, int], Sequence[str]] = {}
    runs = []
    for place, start, stop in spans:
        if (part := pages.get((start, stop))) is None:
            part = pages[start, stop] = page_hashes[start:stop]
        runs.append(KeyRun(affixes[place], part))
    lengths: set[int] = set()
    for part in pages.values():
        lengths.update(map(len, part))
    return ObjectKeys(runs, lengths.pop() or None if is_ascii and len(lengths) == 1 else None)


def _check_page_hashes(page_hashes: Sequence[str], layout: Layout) -> bool:
    """Refuse pages that are no strings; whether all are ASCII."""
    # Windows see only some of them; a page that is not a string is refused wherever it stands.
    if isinstance(page_hashes, list | tuple) and page_hashes:
        try:
            return "".join(page_hashes).isascii()
        except TypeError:
            pass
    layout.object_keys(page_hashes, layout.pools[0].name)
    return False
