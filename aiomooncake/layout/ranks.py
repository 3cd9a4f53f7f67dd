"""Which ranks a layout asks about."""

from __future__ import annotations

from ..errors import ConfigError
from .pool import is_count

__all__ = ["select_ranks"]


def select_ranks(rank_name: str, rank: int | None, size_name: str, size: int) -> range:
    """All ranks of a group when `rank` is None, else that one. The names are of the options, for the errors.

    Raises:
        ConfigError: `size` is not at least 1, or `rank` is none of the group.
    """
    if not is_count(size):
        raise ConfigError(f"{size_name} must be an integer of at least 1, not {size!r}")
    if rank is None:
        return range(size)
    if not is_count(rank, least=0) or rank >= size:
        raise ConfigError(f"{rank_name} must be from 0 to {size - 1}, or None for all ranks, not {rank!r}")
    return range(rank, rank + 1)
