"""A production trace, replayed: each request looks up its prompt's pages, and those not found are stored afterwards.

Blocks of the trace (512 tokens) are eight pages of 64 tokens. Its timestamps were recorded in steps of 3 s; requests
of one step are spread over it evenly, and stored at its end.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .arrivals import scaled
from .load import LAYOUTS, block_pages, ideal_keys, object_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from numpy.typing import NDArray

    from .clients.base import Client

__all__ = ["BLOCK_PAGES", "TRACE", "Part", "Request", "load_trace"]

TRACE = Path(__file__).parent / "data" / "conversation_trace.jsonl.xz"
BLOCK_PAGES = 8
_STEP = 3000.0  # milliseconds


class Request(NamedTuple):
    """One request of the trace: when it came, in milliseconds, and the blocks of its prompt."""

    timestamp: float
    blocks: list[int]


@lru_cache(maxsize=1)
def load_trace(path: Path = TRACE) -> list[Request]:
    """The requests of a trace in Mooncake's format: a JSON object a line, with `timestamp` and `hash_ids`.

    Args:
        path: The file; one that ends in .xz is unpacked.
    """
    data = path.read_bytes()
    text = lzma.decompress(data) if path.suffix == ".xz" else data
    lines = map(json.loads, text.splitlines())
    return [Request(line["timestamp"], line["hash_ids"]) for line in lines]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some requests of a trace in a row, `speed` times as fast.

    Attributes:
        trace: Path of the trace.
        first: Number of the first request.
        count: How many.
        layout: What is stored of a page: a name in `LAYOUTS`.
        warm_up: How many of the requests are not measured.
    """

    trace: str
    first: int
    count: int
    layout: str
    warm_up: int
    speed: float

    @property
    def requests(self) -> list[Request]:
        """These requests."""
        return load_trace(Path(self.trace))[self.first : self.first + self.count]

    def arrivals(self) -> NDArray[np.float64]:
        """When they come, in seconds from the first."""
        steps, first, sizes = self._steps()
        within = (np.arange(sizes.sum()) - np.repeat(first, sizes)) / np.repeat(sizes, sizes)
        return scaled((np.repeat(steps, sizes) + within) * _STEP, self.speed)

    def pauses(self) -> list[int]:
        """Of these requests, the numbers of those before which the pages of those that came earlier are stored."""
        _, first, _ = self._steps()
        later: list[int] = first[1:].tolist()
        return later

    def asks(self, client: Client) -> list[Callable[[], Awaitable[int]]]:
        """Their lookups, ready to be asked."""
        return [partial(client.lookup, self._pages(request.blocks), LAYOUTS[self.layout]) for request in self.requests]

    def new_keys(self, number: int, found: int) -> list[str]:
        """The objects of a request's pages that its engine had to compute: those after the ones found."""
        return object_keys(LAYOUTS[self.layout], self._pages(self.requests[number].blocks)[found:])

    def ideal_keys(self, found: Sequence[int]) -> float:
        """The fewest keys a lookup that could have found these numbers of pages."""
        asked = (len(request.blocks) * BLOCK_PAGES for request in self.requests)
        layout = LAYOUTS[self.layout]
        return sum(ideal_keys(layout, *pair) for pair in zip(asked, found, strict=True)) / len(found)

    def objects(self) -> int:
        """How many different objects all of them store."""
        blocks = {block for request in self.requests for block in request.blocks}
        return len(object_keys(LAYOUTS[self.layout], self._pages([0]))) * len(blocks)

    def _steps(self) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.intp]]:
        """The steps of the recorded clock: their numbers, the first request of each, and how many it has."""
        times = np.array([request.timestamp for request in self.requests])
        return np.unique(np.rint(times / _STEP), return_index=True, return_counts=True)

    def _pages(self, blocks: list[int]) -> list[str]:
        return [page for block in blocks for page in block_pages(str(block), BLOCK_PAGES)]
