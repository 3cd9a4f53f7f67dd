"""The predictor: where does a stored prefix probably end? A hint for what to ask first, never an answer.

Page hashes are chained: a hash names its page and everything before it. So the pages of a prompt that were seen
before are a prefix of it, and the first page that was not seen is where the stored prefix is expected to end.

Memory is a Bloom filter in two generations. New pages enter the young one; when it is full it becomes the old one,
and the old one is forgotten. A page that is seen again enters the young generation again, so what is in use stays.
Each page sets three bits in each of two 64-bit words: about as few false positives as six free bits, at a third of
the memory accesses. False positives hardly matter, since one lengthens the expected prefix by a single page, and
most are recognised: see `Predictor.forecast`.

All pages of a prompt are learnt, the missing ones too: whoever finds that a page is missing computes and stores it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .config import DEFAULT_PREDICTOR_PAGES
from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

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
_ONE, _SIX_BITS, _HALF = np.uint64(1), np.uint64(63), np.uint64(32)
_SHIFTS = tuple(np.uint64(shift) for shift in (0, 6, 12))

# Pages that are looked for at first, then twice as many: where few are stored, the others need not be looked at before
# the question leaves.
_FIRST_CHUNK = 128

_TRUST_WEIGHT = 1 / 4  # of the newest lookup: three forecasts that were wrong from the start make it cautious
_CAUTIOUS_BELOW = 0.5
_MAX_LAYOUTS = 256
# A page that was expected and is gone fills a generation like this many new ones, so a store that evicts early gets a
# short memory: with one that keeps a tenth of a trace's pages, 1.11 times the keys needed instead of 1.29. What a
# cautious forecast got wrong does not count: a layout that never hits must not cost the others their memory.
_FALSE_PAGE_COST = 64


class _Places(NamedTuple):
    """Where the pages of one prompt stand in a generation: two rows of word numbers and of bits in these words."""

    words: NDArray[np.intp]
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
        self._words = -(-pages // 8)  # eight bits a page
        self._young = np.zeros(self._words, np.uint64)
        self._old = np.zeros(self._words, np.uint64)
        self._filled = 0
        self._trust: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<Predictor young={self._filled}/{self._capacity} pages memory={self.memory_bytes} bytes>"

    @property
    def memory_bytes(self) -> int:
        """Size of both generations."""
        return self._young.nbytes + self._old.nbytes

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
            places = self._locate(_marks(page_hashes[start:stop]), identity)
            located.append(places)
            young = _holds(self._young, places)
            seen = young | _holds(self._old, places)
            end = int(seen.argmin())
            if not seen[end]:
                break
            start, stop = stop, 2 * stop
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
        if forecast.pages:
            self._judge(forecast.identity, min(found / forecast.pages, 1.0))
            if not forecast.cautious:
                self._filled += max(0, forecast.pages - found) * _FALSE_PAGE_COST
        done = 0
        for places in forecast.located:
            self._add(places)
            done += places.bits.shape[1]
        if done < len(forecast.page_hashes):
            self._add(self._locate(_marks(forecast.page_hashes[done:]), forecast.identity))
        if self._filled >= self._capacity:
            self._young, self._old = np.zeros(self._words, np.uint64), self._young
            self._filled = 0

    def _is_doubted(self, identity: int) -> bool:
        return self._trust.get(identity, 1.0) < _CAUTIOUS_BELOW

    def _judge(self, identity: int, share: float) -> None:
        if len(self._trust) >= _MAX_LAYOUTS:
            self._trust.clear()
        trust = self._trust.get(identity, 1.0)
        self._trust[identity] = trust + (share - trust) * _TRUST_WEIGHT

    def _locate(self, marks: NDArray[np.uint64], identity: int) -> _Places:
        mixed = (marks + np.uint64(identity & 0xFFFFFFFFFFFFFFFF)) * _SPREAD
        mixed ^= mixed >> _HALF
        mixed *= _MIX
        words = ((mixed >> _HALF) * np.uint64(self._words)) >> _HALF
        bits = _ONE << (mixed & _SIX_BITS)
        for shift in _SHIFTS[1:]:
            bits |= _ONE << ((mixed >> shift) & _SIX_BITS)
        return _Places(words.astype(np.intp), bits)

    def _add(self, places: _Places) -> None:
        young = self._young
        missing = (young.take(places.words) & places.bits) != places.bits
        self._filled += int(missing.any(axis=0).sum())
        words, bits = places.words[missing], places.bits[missing]
        while len(words):
            # Of several pages that share a word one assignment wins; the others take another turn.
            young[words] |= bits
            lost = (young[words] & bits) != bits
            words, bits = words[lost], bits[lost]


def _holds(generation: NDArray[np.uint64], places: _Places) -> NDArray[np.bool_]:
    held: NDArray[np.bool_] = ((generation.take(places.words) & places.bits) == places.bits).all(axis=0)
    return held


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
