"""SGLang HiCache's page hashes (sglang 0.5.23, `srt/mem_cache/utils.py`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ConfigError
from .tokens import as_tokens, check_count, check_text

if TYPE_CHECKING:
    from .tokens import TokenArray, TokenIds

__all__ = ["SGLangHasher", "sglang_namespace_seed", "sglang_page_hashes"]

_NARROW_LIMIT = 1 << 32


def sglang_page_hashes(
    token_ids: TokenIds,
    page_size: int,
    *,
    extra_key: str | None = None,
    cache_salt: str | None = None,
    prior_hash: str | None = None,
    bigram: bool = False,
) -> list[str]:
    """The hashes under which SGLang HiCache stores the pages of a prompt.

    Hashes are chained: a page's hash stands for the whole prompt up to its end. SGLang also hashes a last page that
    is not full, but stores whole pages only, so that page is left out here.

    Args:
        token_ids: The prompt, from 0 to 2^63 - 1 each; a list or, faster, a numpy array of integers. Not changed.
        page_size: Tokens a page; at least 1.
        extra_key: The request's `extra_key` (a LoRA name, for instance). "" is not None.
        cache_salt: The request's `cache_salt`. "" is as good as None: SGLang's requests make no difference.
        prior_hash: The hash of the page before `token_ids`, to go on with a chain; "" for the start of a chain
            without a namespace. When given, `extra_key` and `cache_salt` are not used: the prior hash has them.
        bigram: Hash pairs of neighbours instead of tokens, as SGLang does with EAGLE. n tokens make n - 1 positions.

    Returns:
        One hash a whole page, 64 hex digits each, in order. Empty when there is no whole page.

    Raises:
        ConfigError: A token id is no integer in range, `page_size` is less than 1, or another argument has the wrong
            type or form.
    """
    check_count("page_size", page_size)
    if prior_hash is None:
        prior_hash = sglang_namespace_seed(extra_key, cache_salt or None) or ""
    digest = _digest(prior_hash)
    tokens = as_tokens(token_ids)
    if bigram:
        tokens = np.stack((tokens[:-1], tokens[1:]), axis=1).reshape(-1)
        page_size *= 2

    # This is nearly all of the time. Joining both in one argument costs less than a second call of hashlib.
    sha256 = hashlib.sha256
    digests = [digest := sha256(digest + page).digest() for page in _pages(tokens, page_size)]
    return list(map(bytes.hex, digests))


def sglang_namespace_seed(extra_key: str | None, cache_salt: str | None) -> str | None:
    """What SGLang puts before the first page of a request that has an `extra_key` or a `cache_salt`.

    Args:
        extra_key: None is absent; "" is not.
        cache_salt: None is absent; "" is not.

    Returns:
        64 hex digits, to be used as a `prior_hash`; None when both are absent.

    Raises:
        ConfigError: An argument is neither None nor a string that has a UTF-8 form.
    """
    check_text("extra_key", extra_key)
    check_text("cache_salt", cache_salt)
    if extra_key is None and cache_salt is None:
        return None
    seed = hashlib.sha256(b"sglang-cache-namespace-v1")
    for part in (extra_key, cache_salt):
        if part is None:
            seed.update(b"\x00")
        else:
            encoded = part.encode()
            seed.update(b"\x01" + len(encoded).to_bytes(8, "little") + encoded)
    return seed.hexdigest()


@dataclass(frozen=True)
class SGLangHasher:
    """`sglang_page_hashes` with the choices that belong to a deployment, for a layout's `hasher`.

    Attributes:
        bigram: Whether the server speculates with EAGLE, whose pages are hashed over pairs of tokens.
    """

    bigram: bool = False

    def page_hashes(
        self, token_ids: TokenIds, page_size: int, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> list[str]:
        """See `sglang_page_hashes`."""
        return sglang_page_hashes(token_ids, page_size, extra_key=extra_key, cache_salt=cache_salt, bigram=self.bigram)


def _digest(prior_hash: str) -> bytes:
    check_text("prior_hash", prior_hash)
    try:
        digest = bytes.fromhex(prior_hash)
    except ValueError:
        digest = b"?"
    if len(digest) not in (0, 32) or len(prior_hash) != 2 * len(digest):
        raise ConfigError(f"prior_hash must be 64 hex digits, or empty for the start of a chain, not {prior_hash!r}")
    return digest


def _pages(tokens: TokenArray, page_size: int) -> list[bytes]:
    """The bytes that SGLang hashes for each whole page: 4 a token, or 8 behind a mark when one of them needs more."""
    count = len(tokens) // page_size
    if count == 0:
        return []
    whole = np.ascontiguousarray(tokens[: count * page_size])
    if tokens.itemsize == 4:
        return _split(whole, count)
    is_wide = np.any(whole.reshape(count, page_size) >= _NARROW_LIMIT, axis=1)
    return [
        b"\xff" + wide if marked else narrow
        for marked, wide, narrow in zip(is_wide, _split(whole, count), _split(whole.astype("<u4"), count), strict=True)
    ]


def _split(buffer: TokenArray, count: int) -> list[bytes]:
    pages: list[bytes] = buffer.view(f"V{buffer.nbytes // count}").tolist()
    return pages
