"""Which batch, window and connections should be the defaults?

    python -m benchmarks.defaults [--master HOST:PORT]

For each setting, on keys that are all there: keys a second of one huge question, of 256 callers with 64 keys each, of
1000 callers with one key each; and how long a lone one-key question takes while another caller asks 300,000 keys.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, NamedTuple

import anyio
import uvloop

import aiomooncake as am

from .measure import latency, master_holding, page_keys, questions_per_second

_HUGE = 65_536


class _Result(NamedTuple):
    huge: float
    many: float
    lone: float
    p50: float
    p99: float


async def _measure(address: str, keys: list[str], **options: Any) -> _Result:
    async with am.connect(address, timeout=None, **options) as engine:
        rates = []
        for _ in range(5):
            start = time.perf_counter()
            await engine.batch_exists(keys[:_HUGE])
            rates.append(_HUGE / (time.perf_counter() - start))
        chunks = [keys[64 * number : 64 * number + 64] for number in range(256)]
        many = 64 * await questions_per_second(lambda number: engine.batch_exists(chunks[number]), tasks=256, seconds=1)
        lone = await questions_per_second(lambda number: engine.exists(keys[number]), tasks=1000, seconds=1)

        samples: list[float] = []
        async with anyio.create_task_group() as group:

            async def keep_busy() -> None:
                for _ in range(3):
                    await engine.batch_exists(keys[:300_000])
                group.cancel_scope.cancel()

            group.start_soon(keep_busy)
            while True:
                start = time.perf_counter()
                await engine.exists(keys[0])
                samples.append(time.perf_counter() - start)
        short = latency(samples)
        return _Result(sorted(rates)[2], many, lone, short.p50, short.p99)


async def main() -> None:
    keys = page_keys(300_000)
    async with master_holding(keys, __doc__) as address:
        print("batch window conns | huge Mkeys/s | 256x64 Mkeys/s | 1000x1 k/s | 1 key beside 300,000: p50 us  p99 us")
        for batch, window, connections in itertools.product((512, 1024, 2048, 4096), (1, 2, 4), (1, 2, 4)):
            result = await _measure(address, keys, max_batch_keys=batch, max_in_flight=window, connections=connections)
            print(
                f"{batch:5} {window:6} {connections:5} | {result.huge / 1e6:12.2f} | {result.many / 1e6:14.2f} |"
                f" {result.lone / 1e3:10.0f} | {result.p50 * 1e6:30.0f} {result.p99 * 1e6:7.0f}",
                flush=True,
            )


if __name__ == "__main__":
    uvloop.run(main())
