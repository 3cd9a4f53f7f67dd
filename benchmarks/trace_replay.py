"""How much does a lookup ask, on a production trace? Keys beside the fewest possible, and round trips.

    python -m benchmarks.trace_replay [TRACE.jsonl[.xz]]

Replays the requests in order: look up the prompt's pages, then store all of them. A block of the trace (512 tokens)
is eight pages of 64 tokens. The store is simulated (a set of blocks, or one that evicts the least recently used);
what looks up is the library's own `lookup`. Counts do not depend on the machine.

The ideal asks each pool that needs all pages for one page more than it has, and each trailing pool for one window.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aiomooncake.bench.replay import TRACE
from aiomooncake.hybrid import lookup
from aiomooncake.layout import HitPolicy, Layout, Pool
from aiomooncake.predictor import Predictor
from aiomooncake.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiomooncake.hybrid import Lookup

__all__ = ["BLOCK_PAGES", "MLA", "V4", "Tally", "load_trace", "main", "replay"]

BLOCK_PAGES = 8

MLA = Layout((Pool("kv", ("__k",)),))
V4 = Layout(
    (
        *(Pool(f"deepseek_v4_{name}", (f"__deepseek_v4_{name}",)) for name in ("c4", "c128", "c4_indexer")),
        *(
            Pool(f"deepseek_v4_{name}", (f"__deepseek_v4_{name}",), HitPolicy.TRAILING_PAGES, 4)
            for name in ("swa", "c4_state", "c128_state")
        ),
    )
)


class Tally(NamedTuple):
    """What a replay came to."""

    lookups: int
    keys: int
    ideal: int
    rounds: int
    in_vain: int

    @property
    def keys_ratio(self) -> float:
        """Keys asked for each one that had to be."""
        return self.keys / self.ideal

    @property
    def rounds_per_lookup(self) -> float:
        """Round trips of the average lookup."""
        return self.rounds / self.lookups


def load_trace(path: Path = TRACE) -> list[list[int]]:
    """The blocks of each request."""
    data = path.read_bytes()
    text = lzma.decompress(data) if path.suffix == ".xz" else data
    return [json.loads(line)["hash_ids"] for line in text.splitlines()]


def replay(
    requests: Sequence[Sequence[int]],
    layout: Layout,
    predictor: Predictor | None,
    *,
    kept_blocks: int | None = None,
    every: int = 1,
) -> Tally:
    """Look up every `every`-th request; store all of them.

    Args:
        requests: Blocks of each request.
        layout: Pools; all of them are stored.
        predictor: As for `lookup`.
        kept_blocks: Size of the store, which evicts the least recently used block; None: it keeps everything.
        every: 1: this client sees each request; 4: three other clients see the others.
    """
    store: OrderedDict[int, None] = OrderedDict()
    lookups = keys = ideal = rounds = in_vain = 0
    for number, blocks in enumerate(requests):
        if number % every == 0:
            page_hashes = [page_hash for block in blocks for page_hash in _page_hashes(block)]
            held = {page_hash for block in blocks if block in store for page_hash in _page_hashes(block)}
            answer = _finish(lookup(_asker(held), page_hashes, layout, predictor=predictor))
            hits = next((i for i, block in enumerate(blocks) if block not in store), len(blocks)) * BLOCK_PAGES
            if answer.result.pages != hits:
                raise AssertionError(f"request {number}: {answer.result.pages} pages instead of {hits}")
            lookups += 1
            keys += answer.result.keys_queried
            rounds += answer.result.round_trips
            in_vain += answer.keys_in_vain
            ideal += sum(
                min(len(page_hashes), hits + 1) if pool.trailing_pages is None else min(hits, pool.trailing_pages)
                for pool in layout.pools
            )
        for block in blocks:
            store[block] = None
            store.move_to_end(block)
        while kept_blocks is not None and len(store) > kept_blocks:
            store.popitem(last=False)
    return Tally(lookups, keys, ideal, rounds, in_vain)


def _page_hashes(block: int) -> list[str]:
    stem = hashlib.sha256(b"%d" % block).hexdigest()[2:]
    return [f"{stem}{page:02x}" for page in range(BLOCK_PAGES)]


def _asker(held: set[str]) -> Callable[[Sequence[str | bytes]], Coroutine[None, None, Reply]]:
    async def ask(keys: Sequence[str | bytes]) -> Reply:
        return Reply(bytes(key[:64] in held for key in keys), {})

    return ask


def _finish(coroutine: Coroutine[None, None, Lookup]) -> Lookup:
    """Run a coroutine that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        answer: Lookup = finished.value
        return answer
    raise AssertionError("the simulated store answers at once")


def main() -> None:
    requests = load_trace(Path(sys.argv[1]) if len(sys.argv) > 1 else TRACE)
    blocks = len({block for request in requests for block in request})
    memory = Predictor().memory_bytes
    print(f"{len(requests)} requests, {blocks * BLOCK_PAGES} distinct pages, {memory} bytes of predictor memory")
    print(f"{'':60}{'keys':>8}{'rounds':>8}{'in vain':>9}")
    for name, layout in (("MLA", MLA), ("six pools (DeepSeek-V4)", V4)):
        for situation, predict, kept, every in (
            ("no predictor", False, None, 1),
            ("predictor", True, None, 1),
            ("predictor, store keeps 30%", True, blocks * 3 // 10, 1),
            ("predictor, store keeps 10%", True, blocks // 10, 1),
            ("predictor, sees every 4th request", True, None, 4),
        ):
            tally = replay(requests, layout, Predictor() if predict else None, kept_blocks=kept, every=every)
            print(
                f"{name + ': ' + situation:60}{tally.keys_ratio:8.3f}{tally.rounds_per_lookup:8.3f}"
                f"{tally.in_vain / tally.keys:9.2%}"
            )


if __name__ == "__main__":
    main()
