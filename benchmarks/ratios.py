"""How does the engine compare, side by side in one run, with what is there without it?

    python -m benchmarks.ratios

Everything takes turns in short slices, so that whatever else the machine does falls on all alike; a ratio is the
median over the slices. Keys are asked that are stored (hits) and that are not (misses): a master needs several times
as long for a hit, and the more of an answer's time is the master's, the nearer all clients are to each other.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, cast

import uvloop

import aiomooncake as am
from aiomooncake.bench.clients.floor import loop_floor, raw_socket
from aiomooncake.bench.clients.official import Async, Sync, WholePools, open_store
from aiomooncake.local import LocalCluster
from aiomooncake.wire.messages import BatchExistEncoder, decode_batch_exist

from .measure import latency, page_keys, questions_per_second, side_by_side

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_SLICES = 5
_V4 = am.Layout(
    (
        *(am.Pool(f"all_{name}", (f"__{name}",)) for name in "abc"),
        *(am.Pool(f"tail_{name}", (f"__t{name}",), am.HitPolicy.TRAILING_PAGES, 4) for name in "abc"),
    ),
    key_prefix="deepseek-ai-DeepSeek-V4",
)
_MLA = am.Layout((am.Pool("kv", ("__k",)), am.Pool("indexer", ("__indexer",))), key_prefix="deepseek-ai-DeepSeek-V3.2")


def _say(what: str, value: str, target: str) -> None:
    print(f"{what:58} {value:>32}   {target}", flush=True)


def _codec(keys: list[str]) -> None:
    keys = keys[:1024]
    encoder = BatchExistEncoder("default")
    body = bytes.fromhex("5d8c5f2a0c84870b0100") + len(keys).to_bytes(2, "little") + b"\1\1" * len(keys)

    def fastest(function: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(200):
            start = time.perf_counter()
            function()
            best = min(best, time.perf_counter() - start)
        return best / len(keys) * 1e9

    encode, join = fastest(partial(encoder.encode, keys)), fastest(lambda: "".join(keys).encode())
    _say("encoding, 64 hex digits", f"{encode:.0f} ns a key, {encode / join:.1f} x join", "<= 100 ns")
    _say("decoding", f"{fastest(partial(decode_batch_exist, body, len(keys))):.1f} ns a key", "<= 10 ns")


async def _one_at_a_time(address: str, engine: am.Engine, store: object, key: str) -> None:
    async with loop_floor(address) as floor:
        figures = await side_by_side(
            {
                "floor": floor.bind([key]),
                "engine": partial(engine.exists, key),
                "sync": Sync(store).bind([key]),
                "async": Async(store).bind([key]),
            },
            rounds=20,
            questions=500,
        )
    ours, base = figures["engine"], figures["floor"]
    _say("one question at a time: p50", f"{ours.p50 * 1e6:.1f} us, {ours.p50 / base.p50:.2f} x floor", "<= 1.45 (1.25)")
    _say("                        p99", f"{ours.p99 * 1e6:.1f} us, {ours.p99 / base.p99:.2f} x floor", "<= 1.6 (1.3)")
    for name, target in (("sync", "> 1"), ("async", ">= 3")):
        _say(f"                        official {name}, p50", f"{figures[name].p50 / ours.p50:.2f} x ours", target)


def _awaiting(ask: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    """A client's way to ask is typed for blocking ones too."""
    return cast("Callable[[], Awaitable[object]]", ask)


async def _pairs(first: Callable[[], Awaitable[float]], second: Callable[[], Awaitable[float]]) -> tuple[float, float]:
    """Median of the first and of first / second, in turns A B B A."""
    figures, ratios = [], []
    for number in range(_SLICES):
        if number % 2:
            b, a = await second(), await first()
        else:
            a, b = await first(), await second()
        figures.append(a)
        ratios.append(a / b)
    return statistics.median(figures), statistics.median(ratios)


async def _callers(engine: am.Engine, store: object, keys: list[str], label: str) -> None:
    client = Async(store)
    ours: list[Callable[[], Awaitable[object]]] = [partial(engine.exists, key) for key in keys[:1000]]
    theirs = [_awaiting(client.bind([key])) for key in keys[:1000]]
    run = partial(questions_per_second, seconds=1.0, warm_up=0.3)
    rate, ratio = await _pairs(
        lambda: run(lambda n: ours[n](), tasks=1000), lambda: run(lambda n: theirs[n](), tasks=1000)
    )
    _say(f"1000 callers x 1 key, {label}", f"{rate / 1e3:.0f} k/s, {ratio:.1f} x official async", ">= 18 (25)")
    groups = [keys[64 * n : 64 * n + 64] for n in range(256)]
    asks = [_awaiting(client.bind(group)) for group in groups]
    rate, ratio = await _pairs(
        lambda: run(lambda n: engine.batch_exists(groups[n]), tasks=256), lambda: run(lambda n: asks[n](), tasks=256)
    )
    _say(
        f"256 callers x 64 keys, {label}",
        f"{rate * 64 / 1e3:.0f} k keys/s, {ratio:.1f} x official async",
        ">= 5.5 (6.5)",
    )


async def _bulk(address: str, engine: am.Engine, keys: list[str], label: str) -> None:
    with raw_socket(address) as raw:
        ask = raw.bind(keys)  # frames of 4096 keys
        ask()

        async def ours() -> float:
            start = time.perf_counter()
            await engine.batch_exists(keys, timeout=None)
            return len(keys) / (time.perf_counter() - start)

        async def theirs() -> float:
            start = time.perf_counter()
            ask()
            return len(keys) / (time.perf_counter() - start)

        rate, ratio = await _pairs(ours, theirs)
    _say(f"one batch_exists of {len(keys)}, {label}", f"{rate / 1e3:.0f} k keys/s, {ratio:.2f} x raw", ">= 0.8 (0.95)")


async def _beside(engine: am.Engine, keys: list[str]) -> None:
    async def sample(until: Callable[[], bool]) -> list[float]:
        samples = []
        while not until():
            start = time.perf_counter()
            await engine.exists(keys[0])
            samples.append(time.perf_counter() - start)
        return samples

    idle: list[float] = []
    busy: list[float] = []
    for _ in range(_SLICES):
        end = time.perf_counter() + 0.5
        idle += await sample(lambda: time.perf_counter() > end)  # noqa: B023  # called at once
        huge = asyncio.ensure_future(engine.batch_exists(keys, timeout=None))
        busy += await sample(huge.done)
        await huge
    before, during = latency(idle), latency(busy)
    _say(
        f"1 key beside {len(keys)}: p99",
        f"{during.p99 * 1e6:.0f} us, {during.p99 / before.p99:.1f} x idle",
        "<= 10",
    )


async def _hybrid(cluster: LocalCluster, engine: am.Engine, store: object) -> None:
    client = WholePools(store)
    cases = (
        (_V4, 512, 512, False, ">= 4"),
        (_V4, 512, 512, True, ">= 2.5"),
        (_V4, 512, 26, False, ">= 15"),
        (_MLA, 2048, 102, False, ">= 12"),
    )
    for layout, pages, hit, restorable, target in cases:
        stored = am.sglang_page_hashes([hit] * hit, 1, extra_key=str(pages))
        await cluster.put([key for pool in layout.pools for key in layout.object_keys(stored, pool.name)])
        ours, theirs = [], []
        for number in range(80):
            # What follows the stored prefix is new each time, as with real prompts.
            prompt = (
                stored + page_keys(pages - hit)
                if number == 0
                else stored + am.sglang_page_hashes([number] * (pages - hit), 1, extra_key=str(number))
            )
            start = time.perf_counter()
            found = await engine.lookup(prompt, layout, restorable=restorable)
            middle = time.perf_counter()
            assert await client.lookup(prompt, layout) == found.pages == hit
            end = time.perf_counter()
            if number >= 10:
                ours.append(middle - start)
                theirs.append(end - middle)
        ratio = statistics.median(theirs) / statistics.median(ours)
        name = "six V4 pools" if layout is _V4 else "MLA + indexer"
        what = f"{name}, {pages} pages, {hit} stored{', restorable' if restorable else ''}"
        _say(what, f"{statistics.median(ours) * 1e6:.0f} us, SGLang's calls {ratio:.1f} x", target)


async def main() -> None:
    stored = page_keys(300_000)
    missing = [f"{number:064x}" for number in range(65_536)]
    async with LocalCluster(segment_bytes=512 << 20) as cluster:
        await cluster.put(stored[:1])
        store = open_store(cluster.address)
        async with am.connect(cluster.address) as engine:
            _say("", "", "target (later)")
            _codec(stored)
            await _one_at_a_time(cluster.address, engine, store, stored[0])
            await _callers(engine, store, missing, "almost nothing stored")
            await cluster.put(stored)
            for keys, label in ((missing, "misses"), (stored[:65_536], "hits")):
                await _callers(engine, store, keys, label)
                await _bulk(cluster.address, engine, keys, label)
            await _beside(engine, stored)
            await _hybrid(cluster, engine, store)
        store.close()


if __name__ == "__main__":
    uvloop.run(main())
