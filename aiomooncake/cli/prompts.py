"""A prompt, as the options of `lookup --layout` and `explain` give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError, InvalidKeyError
from .layouts import load_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..layout import Layout

__all__ = ["Prompt"]

# How lists of numbers are written: 1 2 3, 1,2,3 or [1, 2, 3].
_NUMBER_MARKS = bytes.maketrans(b",[]", b"   ")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Where page hashes come from.

    Attributes:
        given: page hashes, or token ids in one piece or several.
        tokens: they are token ids.
        layout: file or URL, see `layouts.load_layout`.
        bigram: the server hashes for EAGLE.
        extra_key, cache_salt: of the request, for token ids.
    """

    given: Sequence[bytes]
    tokens: bool
    layout: str
    bigram: bool
    extra_key: str | None
    cache_salt: str | None

    async def load(self, timeout: float) -> tuple[list[str], Layout]:
        """The pages, bare, and the layout that makes keys of them.

        Raises:
            ConfigError: something of it cannot be used; the message says what.
            ConnectError: the server that should describe its layout does not answer.
        """
        layout = await load_layout(self.layout, bigram=self.bigram, timeout=timeout)
        if self.tokens:
            pages = layout.page_hashes(_numbers(self.given), extra_key=self.extra_key, cache_salt=self.cache_salt)
            if not pages:
                raise ConfigError(f"these tokens do not fill a page of {layout.page_size}, so nothing can be stored")
        else:
            if self.extra_key is not None or self.cache_salt is not None:
                raise ConfigError("--extra-key and --cache-salt go into the hashes of token ids: add --tokens")
            pages = [_text(page_hash) for page_hash in self.given]
            if not pages:
                raise ConfigError("no page hashes: give some as arguments, with --file, or on stdin with -")
        return pages, layout


def _numbers(given: Sequence[bytes]) -> list[int]:
    numbers = b" ".join(given).translate(_NUMBER_MARKS).split()
    try:
        return [int(number) for number in numbers]
    except ValueError as error:
        raise ConfigError(f"token ids are whole numbers: {error}") from error


def _text(page_hash: bytes) -> str:
    try:
        return page_hash.decode()
    except UnicodeDecodeError as error:
        raise InvalidKeyError(f"page hash {page_hash!r} is no UTF-8") from error
