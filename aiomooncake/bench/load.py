"""What is asked: questions of plain keys, and prompts of a hybrid layout. Known to every process by number."""

from __future__ import annotations

import hashlib
import itertools
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..layout import HitPolicy, Layout, Pool
from .keys import page_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from .clients.base import Ask, Client

__all__ = ["LAYOUTS", "KeyLoad", "PromptLoad", "block_pages", "ideal_keys", "object_keys"]

# DeepSeek-V4 as SGLang stores it: no KV objects of its own, three pools that need all pages, three that need a window.
_ALL_PAGES = ("c4", "c128", "c4_indexer")
_TRAILING = ("swa", "c4_state", "c128_state")

LAYOUTS: dict[str, Layout] = {
    "plain": Layout((Pool("kv", ("__k",)),)),
    "hybrid": Layout(
        (
            *(Pool(f"deepseek_v4_{name}", (f"__deepseek_v4_{name}",)) for name in _ALL_PAGES),
            *(
                Pool(f"deepseek_v4_{name}", (f"__deepseek_v4_{name}",), HitPolicy.TRAILING_PAGES, 4)
                for name in _TRAILING
            ),
        )
    ),
}


def object_keys(layout: Layout, page_hashes: list[str]) -> list[str]:
    """Every object of these pages, in all pools."""
    return [key for pool in layout.pools for key in layout.object_keys(page_hashes, pool.name)]


def ideal_keys(layout: Layout, asked: int, found: int) -> int:
    """The fewest keys that can show that `found` of `asked` pages are restorable.

    A pool that needs all pages has to be asked for them and for the one that ends them, a trailing pool for one window.
    """
    return sum(
        len(pool.suffixes) * (min(asked, found + 1) if pool.trailing_pages is None else min(found, pool.trailing_pages))
        for pool in layout.pools
    )


def block_pages(block: int | str, pages: int) -> Iterator[str]:
    """Hashes of the pages of one block of a prompt."""
    return (hashlib.sha256(f"{block}/{page}".encode()).hexdigest() for page in range(pages))


@dataclass(frozen=True, kw_only=True)
class KeyLoad:
    """Questions of `keys` keys each. Neighbours ask for different keys.

    Attributes:
        questions: How many different ones.
        stored: Keys there are in the store; when the questions need more keys, they start over with the first.
        hit: Whether the questions ask for those, or for as many that are not stored.
    """

    keys: int
    questions: int
    stored: int
    hit: bool = True

    def describe(self) -> dict[str, float | str]:
        """For result files, where every question has its caller."""
        return {"callers": self.questions, "keys": self.keys, "stored": "all" if self.hit else "none"}

    def stored_keys(self) -> list[str]:
        """What has to be stored beforehand."""
        return page_keys(self.stored)

    def asks(self, client: Client) -> list[Ask]:
        """The questions, ready to be asked."""
        pool = page_keys(self.stored, first=0 if self.hit else self.stored) * (self.keys // self.stored + 2)
        starts = ((number * self.keys) % self.stored for number in range(self.questions))
        return [client.bind(pool[start : start + self.keys]) for start in starts]


@dataclass(frozen=True, kw_only=True)
class PromptLoad:
    """Prompts of `pages` pages each, of which the first `hit` are stored, in every pool of the layout.

    The other pages are new in every lookup, as they are in production: those that were looked up before are stored.
    """

    layout: str
    prompts: int
    pages: int
    hit: int

    def describe(self) -> dict[str, float | str]:
        """For result files, where every prompt has its caller."""
        return {"callers": self.prompts, "pages": self.pages, "hit": self.hit, "layout": self.layout}

    def ideal_keys(self) -> float:
        """The fewest keys a lookup."""
        return ideal_keys(LAYOUTS[self.layout], self.pages, self.hit)

    def asks(self, client: Client) -> list[Callable[[], Awaitable[int]]]:
        """The lookups, ready to be asked."""
        layout = LAYOUTS[self.layout]
        numbers = itertools.count(time.monotonic_ns())
        endings = [page_hash[16:] for page_hash in block_pages("new", self.pages - self.hit)]

        def ask(stored: list[str]) -> Awaitable[int]:
            beginning = f"{next(numbers):016x}"
            return client.lookup(stored + [beginning + ending for ending in endings], layout)

        return [partial(ask, self._stored_pages(number)) for number in range(self.prompts)]

    def stored_keys(self) -> list[str]:
        """What has to be stored beforehand."""
        layout = LAYOUTS[self.layout]
        return [key for number in range(self.prompts) for key in object_keys(layout, self._stored_pages(number))]

    def _stored_pages(self, number: int) -> list[str]:
        return list(block_pages(f"{self.layout} prompt {number}", self.hit))
