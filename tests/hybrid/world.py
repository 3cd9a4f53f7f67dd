"""A store that lives in this process, the naive answer, and strategies for both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis.strategies as st

from aiomooncake.hybrid import Lookup, lookup
from aiomooncake.layout import KV_POOL, HitPolicy, Layout, Pool
from aiomooncake.predictor import Forecast, Predictor
from aiomooncake.reply import ERROR, HIT, MISS, Reply

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


class World:
    """Answers existence from a set of keys and a dict of error codes, and keeps what it was asked."""

    def __init__(self, stored: Iterable[str | bytes] = (), codes: dict[str, int] | None = None) -> None:
        self.stored = set(stored)
        self.codes = codes or {}
        self.asked: list[list[str | bytes]] = []

    async def ask(self, keys: Sequence[str | bytes]) -> Reply:
        self.asked.append(list(keys))
        errors = {i: self.codes[key] for i, key in enumerate(keys) if key in self.codes and isinstance(key, str)}
        bits = bytes(ERROR if i in errors else HIT if key in self.stored else MISS for i, key in enumerate(keys))
        return Reply(bits, errors)

    def put(self, layout: Layout, page_hashes: Sequence[str]) -> None:
        for pool in layout.pools:
            self.stored.update(layout.object_keys(page_hashes, pool.name))

    def asked_of(self, layout: Layout, page_hashes: Sequence[str], pool_name: str) -> int:
        """Keys of this pool asked, twice counted when asked twice."""
        of_pool = set(layout.object_keys(page_hashes, pool_name))
        return sum(key in of_pool for keys in self.asked for key in keys)

    def lookup(self, page_hashes: Sequence[str], layout: Layout, **options: Any) -> Lookup:
        return asyncio.run(lookup(self.ask, page_hashes, layout, **options))


class Answer(NamedTuple):
    kv_pages: int
    pool_pages: list[tuple[str, int]]
    restorable: list[int]


def naive(layout: Layout, n: int, present: dict[str, list[bool]]) -> Answer:
    """SGLang's rule, page by page: `present[pool][i]` says whether all objects of page i exist."""
    kv = run(present[KV_POOL]) if layout.kv else n
    usable = set(range(1, kv + 1))
    entries = [(KV_POOL, kv)] if kv else []
    for pool in layout.sidecars if kv else ():
        window = pool.trailing_pages if pool.hit_policy is HitPolicy.TRAILING_PAGES else n
        assert window is not None
        alone = {p for p in range(1, kv + 1) if all(present[pool.name][max(0, p - window) : p])}
        entries += [(pool.name, max(alone))] if alone else []
        usable &= alone
        if not usable:
            break
    return Answer(kv, entries, sorted(usable))


def run(pages: Sequence[bool]) -> int:
    return next((i for i, page in enumerate(pages) if not page), len(pages))


class Scene(NamedTuple):
    layout: Layout
    page_hashes: list[str]
    present: dict[str, list[bool]]
    missing: list[str]

    def world(self) -> World:
        world = World()
        world.put(self.layout, self.page_hashes)
        world.stored.difference_update(self.missing)
        return world

    @property
    def answer(self) -> Answer:
        return naive(self.layout, len(self.page_hashes), self.present)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    pools = []
    count = draw(st.integers(0, 4))
    if draw(st.booleans()) or not count:
        pools.append(Pool(KV_POOL, tuple(f"_k{i}" for i in range(draw(st.integers(1, 3))))))
    for number in range(count):
        window = draw(st.one_of(st.none(), st.integers(1, 5), st.integers(1, 1024)))
        policy = HitPolicy.ALL_PAGES if window is None else HitPolicy.TRAILING_PAGES
        suffixes = tuple(f"_p{number}_{i}" for i in range(draw(st.integers(1, 3))))
        pools.append(Pool(f"pool{number}", suffixes, policy, window))
    return Layout(tuple(draw(st.permutations(pools))), key_prefix=draw(st.sampled_from([None, "", "tag"])))


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """A layout, a prompt, and which pages of it each pool has: mostly long runs, some of them with holes."""
    layout = draw(layouts())
    n = draw(st.one_of(st.integers(0, 40), st.integers(0, 400)))
    width = draw(st.sampled_from([1, 64]))
    page_hashes = [f"{i:0{width}x}" for i in range(n)]
    present, missing = {}, []
    common = draw(st.integers(0, n))
    for pool in layout.pools:
        end = draw(st.one_of(st.just(common), st.just(n), st.integers(0, n)))
        holes = draw(st.sets(st.integers(0, max(n - 1, 0)), max_size=8)) if draw(st.booleans()) else set()
        step = draw(st.sampled_from([0, 0, 0, 2, 3, 7]))  # checkpoints every so many pages
        pages = [i < end and i not in holes and not (step and i % step) for i in range(n)]
        present[pool.name] = pages
        keys = layout.object_keys(page_hashes, pool.name)
        size = len(pool.suffixes)
        missing += [keys[i * size + draw(st.integers(0, size - 1))] for i in range(n) if not pages[i]]
    return Scene(layout, page_hashes, present, missing)


class Constant(Predictor):
    """Expects the same of every prompt."""

    def __init__(self, pages: int, *, cautious: bool = False) -> None:
        super().__init__(8)
        self.pages = pages
        self.cautious = cautious

    def forecast(self, page_hashes: Sequence[str], layout: Hashable) -> Forecast:
        return Forecast(self.pages, self.cautious)
