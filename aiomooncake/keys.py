"""The keys of a lookup, spelled only where somebody reads them.

A lookup asks for thousands of keys that are few templates around many page hashes. On their way to the wire nobody
needs them as strings: `ObjectKeys` is a sequence of them that can be cut, and written in one go, without spelling any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, overload

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Affixes", "KeyRun", "ObjectKeys"]

Affixes: TypeAlias = "tuple[tuple[str, str], ...]"
"""What precedes and what follows the page hash in the key of each object of a page."""


class KeyRun(NamedTuple):
    """The objects that some pages have in one pool: page by page, and within a page in the order of `affixes`."""

    affixes: Affixes
    page_hashes: Sequence[str]

    def spell(self) -> list[str]:
        """The keys. This is where a page hash is tagged."""
        if len(self.affixes) == 1:
            [(head, tail)] = self.affixes
            return [f"{head}{page_hash}{tail}" for page_hash in self.page_hashes]
        return [f"{head}{page_hash}{tail}" for page_hash in self.page_hashes for head, tail in self.affixes]

    def cut(self, start: int, stop: int) -> Iterator[KeyRun]:
        """The keys `start..stop` as runs of their own: whole pages, and pages of which some objects are missing."""
        size = len(self.affixes)
        first, last = -(-start // size), stop // size
        if first > last:  # within one page
            yield KeyRun(self.affixes[start % size : stop - last * size], self.page_hashes[last : last + 1])
            return
        if start < first * size:
            yield KeyRun(self.affixes[start % size :], self.page_hashes[first - 1 : first])
        if first < last:
            yield KeyRun(self.affixes, self.page_hashes[first:last])
        if last * size < stop:
            yield KeyRun(self.affixes[: stop - last * size], self.page_hashes[last : last + 1])

    def write(self, hash_length: int, width: int) -> bytes | bytearray:
        """See `ObjectKeys.write`."""
        if len(self.affixes) == 1:
            [(head, tail)] = self.affixes
            before, after = head.encode(), tail.encode()
            before = (len(before) + hash_length + len(after)).to_bytes(width, "little") + before
            # Latin-1 maps each byte to the character of the same number, and back: a join in C writes the lot.
            between = (after + before).decode("latin-1")
            return before + between.join(self.page_hashes).encode("latin-1") + after
        template = bytearray()
        places = []
        for head, tail in self.affixes:
            before, after = head.encode(), tail.encode()
            template += (len(before) + hash_length + len(after)).to_bytes(width, "little") + before
            places.append(len(template))
            template += bytes(hash_length) + after
        count, hashes = len(self.page_hashes), f"V{hash_length}"
        written = template * count
        source = np.frombuffer("".join(self.page_hashes).encode("ascii"), hashes)
        for place in places:
            np.ndarray((count,), hashes, written, place, (len(template),))[:] = source
        return written


class ObjectKeys(Sequence[str]):
    """Runs of keys, one after the other.

    Args:
        runs: The runs; none of them is empty.
        hash_length: How many characters every page hash of the runs has, if it is the same for all, more than 0, and
            all are ASCII: then the keys can be written. None: not so, or not known.
    """

    __slots__ = ("_count", "hash_length", "runs")

    def __init__(self, runs: Sequence[KeyRun], hash_length: int | None = None) -> None:
        self.runs = runs
        self._count = sum([len(run.affixes) * len(run.page_hashes) for run in runs])
        self.hash_length = hash_length

    @classmethod
    def joined(cls, parts: Iterable[object]) -> ObjectKeys | None:
        """The keys of all parts, one part after the other; None if these are not all keys that can be written alike."""
        runs: list[KeyRun] = []
        lengths: set[int | None] = set()
        for part in parts:
            if not isinstance(part, ObjectKeys):
                return None
            runs += part.runs
            lengths.add(part.hash_length)
        if len(lengths) != 1 or None in lengths:
            return None
        return cls(runs, lengths.pop())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for run in self.runs:
            yield from run.spell()

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, int):
            place = range(self._count)[index]
            [[key]] = (run.spell() for run in self._cut(place, place + 1))
            return key
        start, stop, step = index.indices(self._count)
        if step != 1:
            return list(self)[index]
        return ObjectKeys(list(self._cut(start, stop)), self.hash_length)

    def repeat(self) -> bool:
        """Whether a page hash stands twice between the same affixes, and so two of the keys are equal.

        Keys that are equal though they are put together otherwise, as "a_" + "b" and "a" + "_b" are, are not seen.
        """
        pages: dict[tuple[str, str], set[str]] = {}
        for run in self.runs:
            for around in run.affixes:
                seen = pages.setdefault(around, set())
                before = len(seen)
                seen.update(run.page_hashes)
                if len(seen) < before + len(run.page_hashes):
                    return True
        return False

    def longest(self) -> int:
        """Bytes of the longest key; only where `hash_length` is known."""
        assert self.hash_length is not None
        around = [len((head + tail).encode()) for run in self.runs for head, tail in run.affixes]
        return self.hash_length + max(around, default=0)

    def write(self, width: int) -> list[bytes | bytearray]:
        """The UTF-8 of all keys, each behind its length as `width` bytes, least significant first.

        Only where `hash_length` is known, and `width` is enough for `longest`.

        Raises:
            UnicodeEncodeError: An affix has no UTF-8 form.
        """
        assert self.hash_length is not None
        return [run.write(self.hash_length, width) for run in self.runs]

    def _cut(self, start: int, stop: int) -> Iterator[KeyRun]:
        offset = 0
        for run in self.runs:
            size = len(run.affixes) * len(run.page_hashes)
            first, last = max(start - offset, 0), min(stop - offset, size)
            if first < last:
                yield from (run,) if last - first == size else run.cut(first, last)
            offset += size
