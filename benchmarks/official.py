"""How fast the official client answers existence questions: what asyncio code has without aiomooncake.

sync          `MooncakeDistributedStore.batch_is_exist` on the caller's thread, which it blocks
async         `MooncakeDistributedStoreAsync.async_batch_is_exist`, one question at a time
1000 x 1      1000 long-lived tasks, each asking for one key again and again
256 x 64      256 long-lived tasks, each asking for 64 keys again and again

  python -m benchmarks.official [--master HOST:PORT]
"""

from __future__ import annotations

import uvloop

from aiomooncake.bench.clients.official import Async, Sync, open_store
from benchmarks.measure import master_holding, page_keys, questions_per_second, side_by_side


async def main() -> None:
    keys = page_keys(256 * 64)
    async with master_holding(keys, __doc__) as master:
        store = open_store(master)
        asks = {"sync": Sync(store).bind(keys[:1]), "async": Async(store).bind(keys[:1])}
        for name, result in (await side_by_side(asks)).items():
            print(f"{name:10}  {result}")
        ask = store.async_batch_is_exist
        rate = await questions_per_second(lambda task: ask([keys[task]]), tasks=1000)
        print(f"1000 x 1    {rate:9.0f} questions/s")
        groups = [keys[start : start + 64] for start in range(0, len(keys), 64)]
        rate = await questions_per_second(lambda task: ask(groups[task]), tasks=256)
        print(f"256 x 64    {rate:9.0f} questions/s, {64 * rate / 1e3:.0f} k keys/s")
        store.close()


if __name__ == "__main__":
    uvloop.run(main())
