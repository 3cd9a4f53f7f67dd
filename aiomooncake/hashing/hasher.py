"""What a layout needs to turn token ids into page hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .tokens import TokenIds

__all__ = ["PageHasher"]


class PageHasher(Protocol):
    """Hashes a prompt as one deployment of an engine does. Implementations are frozen, hashable and pure."""

    def page_hashes(
        self, token_ids: TokenIds, page_size: int, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> list[str]:
        """One hash a whole page, in order; a last page that is not full has none.

        Raises:
            ConfigError: An argument is not usable, or not part of this engine's hashes.
        """
