"""The layout: from a page's hash to the keys of its objects, the one place where a key is tagged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import ConfigError, InvalidKeyError
from ..hashing.sglang import SGLangHasher
from ..keys import KeyRun
from . import lmcache, sglang, sglang_reply, vllm
from .pool import KV_POOL, Pool, is_count, is_text

if TYPE_CHECKING:
    from ..hashing.hasher import PageHasher
    from ..hashing.tokens import TokenIds
    from ..keys import Affixes

__all__ = ["Layout"]

_SGLANG_HASHER = SGLangHasher()


@dataclass(frozen=True)
class Layout:
    """Which objects an engine stores for every page, and how their keys are spelled.

    Attributes:
        pools: The pools of a page, in the order in which a lookup reports them. Without a pool named `"kv"` the
            anchor is logical (DeepSeek-V4): it has no objects of its own and the sidecars alone decide. A name may
            stand twice when the pool's objects are the same and only the hit policies differ.
        key_prefix: What SGLang joins to the page hash by `_`; "" is a prefix as well. None: keys start with the hash.
        page_size: Tokens a page. Needed only to look up token ids.
        hasher: How the engine hashes token ids to page hashes: a `SGLangHasher`, `VLLMHasher` or `LMCacheHasher`, or
            anything with their method. Needed only to look up token ids.

    Raises:
        ConfigError: A value is not usable; the message names it and says what to give instead.
    """

    pools: tuple[Pool, ...]
    key_prefix: str | None = None
    page_size: int | None = None
    hasher: PageHasher = _SGLANG_HASHER

    # Each takes the class first; they live beside the facts about their engine.
    from_sglang = classmethod(sglang_reply.from_sglang)
    sglang = classmethod(sglang.sglang)
    vllm = classmethod(vllm.vllm)
    lmcache = classmethod(lmcache.lmcache)

    def __post_init__(self) -> None:
        if isinstance(self.pools, Pool):
            raise ConfigError("pools must be a tuple of Pool, not a single one: write (pool,)")
        try:
            object.__setattr__(self, "pools", tuple(self.pools))
        except TypeError:
            raise ConfigError(f"pools must be a tuple of Pool, not {self.pools!r}") from None
        if not self.pools:
            raise ConfigError("a layout without pools has no objects: every lookup would be a hit on nothing")
        for pool in self.pools:
            if not isinstance(pool, Pool):
                raise ConfigError(f"pools must be a tuple of Pool; it holds {pool!r}")
        self._check_names()
        if self.key_prefix is not None:
            if not isinstance(self.key_prefix, str):
                raise ConfigError(f"key_prefix must be a string or None, not {self.key_prefix!r}")
            for pool in self.pools:
                if pool.prefixes is not None:
                    raise ConfigError(
                        f"pool {pool.name!r} has prefixes of its own, so key_prefix={self.key_prefix!r} "
                        "would be left out of its keys: give one or the other"
                    )
        if self.page_size is not None and not is_count(self.page_size):
            raise ConfigError(f"page_size must be a number of tokens, at least 1, or None, not {self.page_size!r}")
        if not callable(getattr(self.hasher, "page_hashes", None)):
            raise ConfigError(f"hasher must have a page_hashes method, like SGLangHasher; {self.hasher!r} has none")

    @property
    def kv(self) -> Pool | None:
        """The KV pool; None: the anchor is logical, and a lookup starts from all pages."""
        return next((pool for pool in self.pools if pool.name == KV_POOL), None)

    @property
    def sidecars(self) -> tuple[Pool, ...]:
        """Every pool but KV, in order."""
        return tuple(pool for pool in self.pools if pool.name != KV_POOL)

    def object_keys(self, page_hashes: Sequence[str], pool_name: str) -> list[str]:
        """The keys of all objects that the pages have in one pool.

        Args:
            page_hashes: One string a page, as `sglang_page_hashes` gives them; bare, never an object key.
            pool_name: The name of one of the layout's pools.

        Returns:
            Page by page, and within a page in the order of the pool's suffixes.

        Raises:
            ConfigError: The layout has no pool of that name.
            InvalidKeyError: A page hash is not a string, or `page_hashes` is no sequence of them.
        """
        affixes = self.affixes[self.pools.index(self._pool(pool_name))]
        _check_page_hashes(page_hashes)
        return KeyRun(affixes, page_hashes).spell()

    @cached_property
    def affixes(self) -> tuple[Affixes, ...]:
        """For each pool, what precedes and what follows the page hash in the key of each object of a page."""
        prefix = "" if self.key_prefix is None else f"{self.key_prefix}_"
        return tuple(tuple(pool.affixes(prefix)) for pool in self.pools)

    def page_hashes(
        self, token_ids: TokenIds, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> list[str]:
        """The hashes of a prompt's whole pages, as the engine of this layout computes them.

        Args:
            token_ids: The prompt; a list or a numpy array of integers. Not changed.
            extra_key: The request's `extra_key` in SGLang, the LoRA adapter's name in vLLM; refused for LMCache.
            cache_salt: The request's salt; refused for LMCache, where it is a part of the keys.

        Returns:
            One string a whole page, for `object_keys`. A last page that is not full is never stored and has none.

        Raises:
            ConfigError: The layout has no `page_size`, or an argument is not usable.
        """
        if self.page_size is None:
            raise ConfigError("token ids can be looked up only with a layout that has a page_size: give it one")
        return self.hasher.page_hashes(token_ids, self.page_size, extra_key=extra_key, cache_salt=cache_salt)

    def _pool(self, name: str) -> Pool:
        for pool in self.pools:
            if pool.name == name:
                return pool
        names = ", ".join(repr(pool.name) for pool in self.pools)
        raise ConfigError(f"the layout has no pool {name!r}; its pools are {names}")

    def _check_names(self) -> None:
        first_of: dict[str, Pool] = {}
        for pool in self.pools:
            first = first_of.setdefault(pool.name, pool)
            if (first.suffixes, first.prefixes) != (pool.suffixes, pool.prefixes):
                raise ConfigError(
                    f"two pools are named {pool.name!r} but have different objects ({first.suffixes!r}, "
                    f"{pool.suffixes!r}): give them different names, or one pool all the suffixes"
                )
        if [pool.name for pool in self.pools].count(KV_POOL) > 1:
            raise ConfigError("the KV pool stands twice in pools: list it once")


def _check_page_hashes(page_hashes: Sequence[str]) -> None:
    # A string is a sequence of strings too; its characters are no page hashes.
    if isinstance(page_hashes, str | bytes) or not isinstance(page_hashes, Sequence):
        raise InvalidKeyError(f"page_hashes must be a sequence of strings, not {type(page_hashes).__name__}")
    try:
        "".join(page_hashes)  # checks every type at C speed; an f-string would spell b'…' or None into a key
    except TypeError:
        i, page_hash = next((i, h) for i, h in enumerate(page_hashes) if not is_text(h))
        raise InvalidKeyError(
            f"page hash {i} is {page_hash!r} ({type(page_hash).__name__}): page hashes are strings, "
            "in hex where the engine hashes to bytes"
        ) from None
