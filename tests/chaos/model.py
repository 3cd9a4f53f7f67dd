"""What may be answered: which keys certainly exist, which certainly do not, and since when.

Everything here happens in one event loop, so the order of events is exact and one counter is the clock. A key is
ABSENT, PRESENT, or OPEN while it is being stored or removed, or after that has failed. An answer is wrong only if it
contradicts a state that was certain when the question was asked and has not changed since: then no moment between
question and answer could have led to it. Every other answer proves nothing, and is counted as such.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aiomooncake import HitPolicy, Layout, Pool

from ..hybrid.world import naive

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aiomooncake import LookupResult

    from ..hybrid.world import Answer

    Bits = npt.NDArray[np.bool_]
    Places = npt.NDArray[np.int64]

__all__ = ["LAYOUT", "Certain", "Model", "Prompt", "State", "Universe", "Verdict"]

LAYOUT = Layout(
    (
        Pool("kv", ("_k", "_v")),
        Pool("swa", ("_swa",), HitPolicy.TRAILING_PAGES, 4),
        Pool("indexer", ("_idx",)),
    ),
    key_prefix="chaos",
)
_SHELVES, _SHELF_KEYS = 32, 128
_PROMPTS, _PAGES = 24, 48
_NEVER = 100_000


class State(enum.IntEnum):
    """What is certain of a key."""

    ABSENT = 0
    PRESENT = 1
    OPEN = 2


class Prompt(NamedTuple):
    """The pages of a prompt, and for each pool where their objects stand among all keys, a row for each page."""

    page_hashes: list[str]
    objects: dict[str, Places]


class Universe:
    """All keys that anybody asks for. Places are positions in `keys`.

    Attributes:
        keys: The keys.
        shelves: Rows of keys that are stored from the first one on, for prefixes.
        prompts: Prompts of `LAYOUT`.
        never: Keys that nobody ever stores.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.shelves = [self._add([f"shelf-{s}-{i}" for i in range(_SHELF_KEYS)]) for s in range(_SHELVES)]
        self.prompts = [self._prompt(number) for number in range(_PROMPTS)]
        self.stored = np.arange(len(self.keys))
        self.never = self._add([f"never-{i}" for i in range(_NEVER)])

    def _add(self, keys: list[str]) -> Places:
        start = len(self.keys)
        self.keys += keys
        return np.arange(start, len(self.keys))

    def _prompt(self, number: int) -> Prompt:
        page_hashes = [f"{number:016x}{page:048x}" for page in range(_PAGES)]
        objects = {
            pool.name: self._add(LAYOUT.object_keys(page_hashes, pool.name)).reshape(_PAGES, len(pool.suffixes))
            for pool in LAYOUT.pools
        }
        return Prompt(page_hashes, objects)


class Verdict(NamedTuple):
    """What an answer turned out to be: what is wrong with it, and how many keys it was proven right or wrong on."""

    wrong: str | None
    proven: int


class Certain(NamedTuple):
    """For some keys: those that have to be hits, and those that have to be misses. The others may be either."""

    hits: Bits
    misses: Bits

    def judge_bits(self, found: Bits, *, may_miss: bool) -> Verdict:
        """One answer for each key. With `may_miss` a miss proves nothing, as when a failure is answered as a miss."""
        wrong = found & self.misses
        known = self.hits | self.misses
        if may_miss:
            known = known & found
        else:
            wrong = wrong | (~found & self.hits)
        proven = int(np.count_nonzero(known))
        if not wrong.any():
            return Verdict(None, proven)
        first = int(wrong.argmax())
        return Verdict(
            f"{wrong.sum()} of {len(found)} keys; key {first} was said to be {'there' if found[first] else 'missing'}",
            proven,
        )

    def judge_prefix(self, length: int, *, may_miss: bool) -> Verdict:
        """The number of leading hits."""
        if not 0 <= length <= len(self.hits):
            return Verdict(f"a prefix of {length} of {len(self.hits)} keys", 1)
        said = self.hits.copy()  # what is behind the first miss was not said
        said[:length] = True
        said[length : length + 1] = False
        spoken = min(length + 1, len(said))
        return Certain(self.hits[:spoken], self.misses[:spoken]).judge_bits(said[:spoken], may_miss=may_miss)


class Model:
    """The state of every key in a universe."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self.clock = 0
        self.epoch = 0  # of the master: how often one was lost
        self._state = np.full(len(universe.keys), State.ABSENT, np.uint8)
        self._since = np.zeros(len(universe.keys), np.int64)

    def changing(self, places: Places) -> int:
        """These keys are about to be stored or removed. Returns the epoch, for `changed`."""
        self._set(places, State.OPEN)
        return self.epoch

    def changed(self, places: Places, state: State, epoch: int) -> bool:
        """That is done; unless the master to which it was done is gone. Returns whether it is not."""
        if epoch == self.epoch:
            self._set(places, state)
        return epoch == self.epoch

    def losing_all(self) -> None:
        """The master is about to be killed, and every key with it."""
        self.epoch += 1
        self._set(np.flatnonzero(self._state == State.PRESENT), State.OPEN)

    def lost_all(self) -> None:
        """It is dead, and whoever was storing on it will reach no other."""
        self._set(np.flatnonzero(self._state != State.ABSENT), State.ABSENT)

    def certain(self, places: Places, asked_at: int) -> Certain:
        """What has to be answered now to a question for these keys that was asked when the clock showed `asked_at`."""
        state = self._state[places]
        settled = self._since[places] <= asked_at
        return Certain(settled & (state == State.PRESENT), settled & (state == State.ABSENT))

    def judge_lookup(self, prompt: Prompt, pages: int, result: LookupResult, asked_at: int) -> Verdict:
        """A lookup of the first `pages` pages: between the answer without and the answer with every uncertain key.

        More keys never make a prefix shorter or less usable, so these are bounds; where they meet the answer is known,
        and compared whole.
        """
        least: dict[str, list[bool]] = {}
        most: dict[str, list[bool]] = {}
        known = True
        for name, places in prompt.objects.items():
            certain = self.certain(places[:pages].reshape(-1), asked_at)
            least[name] = _whole_pages(certain.hits, pages)
            most[name] = _whole_pages(~certain.misses, pages)
            known = known and least[name] == most[name]
        low, high = naive(LAYOUT, pages, least), naive(LAYOUT, pages, most)
        if result.degraded is not None:  # whatever failed counts as a miss: only too much is wrong
            low = naive(LAYOUT, pages, dict.fromkeys(least, [False] * pages))
            known = False
        wrong = _outside(result, low, high)
        if wrong is None and known and result.restorable is not None and [*result.pool_pages.items()] != low.pool_pages:
            wrong = f"pool_pages is {result.pool_pages}, not {low.pool_pages}"
        return Verdict(wrong, pages if known else 0)

    def _set(self, places: Places, state: State) -> None:
        self.clock += 1
        self._state[places] = state
        self._since[places] = self.clock


def _whole_pages(objects: Bits, pages: int) -> list[bool]:
    return [bool(page.all()) for page in objects.reshape(pages, -1)]


def _outside(result: LookupResult, low: Answer, high: Answer) -> str | None:
    if not low.kv_pages <= result.kv_pages <= high.kv_pages:
        return f"kv_pages is {result.kv_pages}, not {low.kv_pages} to {high.kv_pages}"
    least, most = _longest(low.restorable), _longest(high.restorable)
    if not least <= result.pages <= most:
        return f"pages is {result.pages}, not {least} to {most}"
    if result.restorable is not None:
        lengths = set(result.restorable.tolist())
        if not set(low.restorable) <= lengths <= set(high.restorable):
            return f"restorable is {sorted(lengths)}, not {low.restorable} to {high.restorable}"
    return None


def _longest(lengths: Sequence[int]) -> int:
    return lengths[-1] if lengths else 0
