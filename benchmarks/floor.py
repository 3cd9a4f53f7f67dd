"""How fast the master answers somebody who does nothing but ask: the floor under every client.

Requests are built beforehand and answers are only waited for, not decoded. Three ways:
  loop floor    a bare protocol on uvloop: one write and one future a question
  raw socket    a blocking socket, one key a question
  raw bulk      a blocking socket, frames of 4096 keys one after the other

    python -m benchmarks.floor [--master HOST:PORT]
"""

from __future__ import annotations

import time

import uvloop

from aiomooncake.bench.clients.floor import BULK_KEYS, loop_floor, raw_socket
from benchmarks.measure import master_holding, page_keys, side_by_side


async def main() -> None:
    keys = page_keys(16 * BULK_KEYS)
    async with master_holding(keys, __doc__) as master:
        with raw_socket(master) as raw:
            async with loop_floor(master) as floor:
                asks = {"loop floor": floor.bind(keys[:1]), "raw socket": raw.bind(keys[:1])}
                for name, result in (await side_by_side(asks)).items():
                    print(f"{name}  {result}")
            ask = raw.bind(keys)
            ask()
            rates = []
            for _ in range(9):
                start = time.perf_counter()
                ask()
                rates.append(len(keys) / (time.perf_counter() - start))
            low, *_, high = rates = sorted(rates)
            print(f"raw bulk    {rates[4] / 1e3:.0f} k keys/s (median of 9; {low / 1e3:.0f} to {high / 1e3:.0f})")


if __name__ == "__main__":
    uvloop.run(main())
