"""The predictor: where does a stored prefix probably end? A hint for what to ask first, never an answer.

Page hashes are chained: a hash names its page and everything before it. So the pages of a prompt that were seen
before are a prefix of it, and the first page that was not seen is where the stored prefix is expected to end.

Memory is a Bloom filter in two generations. New pages enter the young one; when it is full it becomes the old one,
and the old one is forgotten. A page that is seen again enters the young generation again, so what is in use stays.
Each page sets up to three bits in each of two 64-bit words: about as few false positives as six free bits, for a third
of the memory accesses. False positives hardly matter, since one lengthens the expected prefix by a single page, and
most are recognised: see `Predictor.forecast`.

All pages of a prompt are learnt, the missing ones too: whoever finds that a page is missing computes and stores it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .config import DEFAULT_PREDICTOR_PAGES
from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["Forecast", "Predictor"]


# Odd multipliers without pattern (splitmix64's sequence); only spread matters.
_WORD_FACTORS = np.array(
    [
        0x6E789E6AA1B965F5, 0x06C45D188009454F, 0xF88BB8A8724C81ED, 0x1B39896A51A8749B,
        0x53CB9F0C747EA2EB, 0x2C829ABE1F4532E1, 0xC584133AC916AB3D, 0x3EE5789041C98AC3,
    ],
    np.uint64,
)  # fmt: skip
_SPREAD = np.array([[0x9E3779B97F4A7C15], [0xBF58476D1CE4E5B9]], np.uint64)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF, _LOW_HALF = np.uint64(32), np.uint64(0xFFFFFFFF)
_BITS_A_WORD = 3
_MASKS_LOG2 = 12
_MASK_SHIFT = np.uint64(64 - _MASKS_LOG2)


def _make_masks() -> NDArray[np.uint64]:
    """Words with up to three bits each: looking one up costs less than making it."""
    numbers = np.arange(1, (_BITS_A_WORD << _MASKS_LOG2) + 1, dtype=np.uint64) * _SPREAD[0]
    numbers ^= numbers >> _HALF
    bits = np.uint64(1) << ((numbers * _MIX) >> np.uint64(58))  # six random bits name one of a word's
    masks: NDArray[np.uint64] = np.bitwise_or.reduce(bits.reshape(-1, _BITS_A_WORD), axis=1)
    return masks


_MASKS = _make_masks()

# Pages that are looked for at first, then several times as many: where few are stored, the others need not be looked at
# before the question leaves.
_FIRST_CHUNK = 128

# Pages that are learnt at once.
_STEP = 512

_TRUST_WEIGHT = 1 / 4  # of the newest lookup: three forecasts that were wrong from the start make it cautious
_CAUTIOUS_BELOW = 0.5
_MAX_LAYOUTS = 256
# A page that was expected and is gone fills a generation like this many new ones, so a store that evicts early gets a
# short memory: with one that keeps a tenth of a trace's pages, 1.11 times the keys needed instead of 1.29. What a
# cautious forecast got wrong does not count: a layout that never hits must not cost the others their memory.
_FALSE_PAGE_COST = 64


class _Places(NamedTuple):
    """Where the pages of one prompt stand in the table: two rows of row numbers and of bits in the words there."""

    rows: NDArray[np.intp]
    bits: NDArray[np.uint64]


class Forecast(NamedTuple):
    """What the predictor expects of one lookup.

    Attributes:
        pages: Expected length of the stored prefix, in pages.
        cautious: Recent forecasts for this layout were mostly too long: try a small window before relying on it.
    """

    pages: int
    cautious: bool = False
    identity: int = 0
    page_hashes: Sequence[str] = ()
    located: Sequence[_Places] = ()


class Predictor:
    """A small, ageing memory of the pages seen.

    Not thread-safe; each call is O(pages of the prompt) in numpy and does no I/O.

    Args:
        pages: How many pages are remembered, the most recent ones; up to twice as many as long as they fit. Costs
            two bytes a page, allocated at once.

    Raises:
        ConfigError: `pages` is less than 1.
    """

    def __init__(self, pages: int = DEFAULT_PREDICTOR_PAGES) -> None:
        if pages < 1:
            raise ConfigError(f"the predictor must remember at least 1 page, not {pages!r}")
        self._capacity = pages  # of each generation
        # Eight bits a page. The words of the two generations, young and old, stand side by side: one access for both.
        self._table = np.zeros((-(-pages // 8), 2), np.uint64)
        self._rows = np.uint64(len(self._table))
        self._filled = 0
        self._trust: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<Predictor young={self._filled}/{self._capacity} pages memory={self.memory_bytes} bytes>"

    @property
    def memory_bytes(self) -> int:
        """Size of both generations."""
        return self._table.nbytes

    def forecast(self, page_hashes: Sequence[str], layout: Hashable) -> Forecast:
        """Where the stored prefix of these pages probably ends.

        Args:
            page_hashes: The pages of the prompt from its first on; any strings.
            layout: What the pages belong to. The same page under two layouts that are not equal is two pages.

        Returns:
            A forecast; give it to `learn` when the answer is known.
        """
        identity = hash(layout)
        located: list[_Places] = []
        young = np.zeros(0, np.bool_)
        start, stop, end = 0, _FIRST_CHUNK, 0
        while start < len(page_hashes):
            places = self._locate(page_hashes[start:stop], identity)
            located.append(places)
            young, old = self._holds(places)
            seen = young | old
            end = int(seen.argmin())
            if not seen[end]:
                break
            start, stop = stop, 4 * stop
        else:
            return Forecast(len(page_hashes), self._is_doubted(identity), identity, page_hashes, located)
        if end and not young[end - 1] and (end == 1 or young[end - 2]):
            # One old page at the end of a young prefix. Whatever was stored past the young part was stored as a run
            # of pages, rarely of exactly one; a false positive comes alone, and mostly from the old, full generation.
            end -= 1
        return Forecast(start + end, self._is_doubted(identity), identity, page_hashes, located)

    def learn(self, forecast: Forecast, found: int) -> None:
        """Remember the pages of a forecast, and how right it was.

        Args:
            forecast: What `forecast` returned.
            found: How many pages the stored prefix really had.
        """
        for _ in self.lesson(forecast, found):
            pass

    def lesson(self, forecast: Forecast, found: int) -> Iterator[None]:
        """The same in small steps, between which other things can be done: exhaust it.

        The page hashes of the forecast may change once this was called.
        """
        if forecast.pages:
            self._judge(forecast.identity, min(found / forecast.pages, 1.0))
            if not forecast.cautious:
                self._filled += max(0, forecast.pages - found) * _FALSE_PAGE_COST
        done = sum(places.rows.shape[1] for places in forecast.located)
        return self._steps(forecast.located, forecast.page_hashes[done:], forecast.identity)

    def _steps(self, located: Sequence[_Places], rest: Sequence[str], identity: int) -> Iterator[None]:
        for places in located:
            self._add(places)
            yield
        for start in range(0, len(rest), _STEP):
            self._add(self._locate(rest[start : start + _STEP], identity))
            yield
        if self._filled >= self._capacity:
            self._table[:, 1] = self._table[:, 0]
            self._table[:, 0] = 0
            self._filled = 0

    def _is_doubted(self, identity: int) -> bool:
        return self._trust.get(identity, 1.0) < _CAUTIOUS_BELOW

    def _judge(self, identity: int, share: float) -> None:
        if len(self._trust) >= _MAX_LAYOUTS:
            self._trust.clear()
        trust = self._trust.get(identity, 1.0)
        self._trust[identity] = trust + (share - trust) * _TRUST_WEIGHT

    def _locate(self, page_hashes: Sequence[str], identity: int) -> _Places:
        mixed = (_marks(page_hashes) + np.uint64(identity & 0xFFFFFFFFFFFFFFFF)) * _SPREAD
        mixed ^= mixed >> _HALF
        rows = ((mixed & _LOW_HALF) * self._rows) >> _HALF
        return _Places(rows.view(np.intp), _MASKS.take((mixed >> _MASK_SHIFT).view(np.intp)))

    def _holds(self, places: _Places) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of these pages the young generation has, and which the old one."""
        bits = places.bits[:, :, np.newaxis]
        held = (self._table.take(places.rows, axis=0) & bits) == bits
        both = held[0] & held[1]
        return both[:, 0], both[:, 1]

    def _add(self, places: _Places) -> None:
        young = self._table[:, 0]  # `take` would copy all of it
        missing = (young[places.rows] & places.bits) != places.bits
        self._filled += int(np.count_nonzero(missing[0] | missing[1]))
        rows, bits = places.rows[missing], places.bits[missing]
        while len(rows):
            # Of several pages that share a word one assignment wins; the others take another turn.
            young[rows] |= bits
            lost = (young[rows] & bits) != bits
            rows, bits = rows[lost], bits[lost]


def _marks(page_hashes: Sequence[str]) -> NDArray[np.uint64]:
    """One number for each string, the same for equal strings throughout this process."""
    count = len(page_hashes)
    text = "".join(page_hashes)
    width = len(page_hashes[0])
    if width in (32, 64) and len(text) == count * width and text.isascii():
        # Hex digests. Ten times faster than hashing each string; strings of other widths that happen to add up get
        # marks that differ from call to call, which makes for bad hints and nothing worse.
        words = np.frombuffer(text.encode("ascii"), np.uint64).reshape(count, width // 8)
        return words @ _WORD_FACTORS[: width // 8]
    return np.fromiter(map(hash, page_hashes), np.int64, count).view(np.uint64)
