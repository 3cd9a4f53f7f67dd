"""The engine itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...engine import Engine
    from ...layout import Layout
    from .base import Ask

__all__ = ["EngineClient"]


class EngineClient:
    """`exists` for a question of one key, `batch_exists` for more, `lookup` for a prompt."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def bind(self, keys: list[str]) -> Ask:
        """See `Client`."""
        return partial(self._engine.exists, keys[0]) if len(keys) == 1 else partial(self._engine.batch_exists, keys)

    async def lookup(self, page_hashes: Sequence[str], layout: Layout) -> int:
        """See `Client`."""
        return (await self._engine.lookup(page_hashes, layout)).pages
