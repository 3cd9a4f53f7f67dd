"""Nobody: asks nothing and answers at once. What is measured then is the load generator."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .base import KeysOnly

if TYPE_CHECKING:
    from .base import Ask

__all__ = ["Nothing"]


class Nothing(KeysOnly):
    """Each question costs one turn of the loop."""

    def bind(self, keys: list[str]) -> Ask:
        """See `Client`."""
        return self._ask

    async def _ask(self) -> None:
        await asyncio.sleep(0)
