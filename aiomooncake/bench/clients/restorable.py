"""Folding the answers of whole pools: what an engine that asked for everything does with what it got."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...layout import Pool

__all__ = ["restorable_pages"]


def restorable_pages(answers: Sequence[tuple[Pool, Sequence[int]]], limit: int) -> int:
    """The longest prefix, of at most `limit` pages, that every pool can restore.

    Args:
        answers: Pools, each with one code for every object of every page, page by page.
        limit: How many pages there are, or the KV pool allows.
    """
    trailing: list[tuple[list[bool], int]] = []
    for pool, codes in answers:
        objects = len(pool.suffixes)
        if objects == 1:
            present = [code == 1 for code in codes]
        else:
            present = [all(code == 1 for code in codes[i : i + objects]) for i in range(0, len(codes), objects)]
        if pool.trailing_pages is not None:
            trailing.append((present, pool.trailing_pages))
        elif False in present:
            limit = min(limit, present.index(False))
    for length in range(limit, 0, -1):
        if all(all(present[max(0, length - window) : length]) for present, window in trailing):
            return length
    return 0
