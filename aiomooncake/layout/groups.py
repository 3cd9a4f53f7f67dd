"""Pools of engines that number their groups of layers instead of naming them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .pool import KV_POOL, HitPolicy, Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["group_names", "group_pool"]


def group_names(windows: Sequence[int | None]) -> list[str]:
    """A pool name for each group: "kv" for the first one that needs all pages (window None), else its number."""
    names = [f"group{number}" for number in range(len(windows))]
    if None in windows:
        names[windows.index(None)] = KV_POOL
    return names


def group_pool(name: str, window: int | None, prefixes: tuple[str, ...], suffix: str = "") -> Pool:
    """A pool with one object for each prefix; a window of None needs all pages."""
    return Pool(
        name,
        (suffix,) * len(prefixes),
        HitPolicy.ALL_PAGES if window is None else HitPolicy.TRAILING_PAGES,
        window,
        prefixes,
    )
