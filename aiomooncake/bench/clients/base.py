"""What a load generator needs of whoever answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from ...layout import Layout

__all__ = ["Ask", "Client", "KeysOnly"]

Ask: TypeAlias = Callable[[], object]
"""A prepared question. Calling it asks; what it returns is awaited if it can be, and otherwise it has blocked."""


class Client(Protocol):
    """One way to ask a master."""

    def bind(self, keys: list[str]) -> Ask:
        """Prepare the question which of these keys exist; what can be done before asking is not measured."""
        ...

    def lookup(self, page_hashes: Sequence[str], layout: Layout) -> Awaitable[int]:
        """How many of a prompt's pages can be restored.

        Raises:
            NotImplementedError: this client has no way to ask that.
        """
        ...


class KeysOnly:
    """A client that knows no layouts."""

    def lookup(self, page_hashes: Sequence[str], layout: Layout) -> Awaitable[int]:
        """See `Client`."""
        raise NotImplementedError(f"{type(self).__name__} asks for keys only")
