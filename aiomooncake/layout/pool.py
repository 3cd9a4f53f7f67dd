"""Pools: which objects a page has, and what their absence means for a prefix."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KV_POOL", "HitPolicy", "Pool", "is_count", "is_text"]

KV_POOL = "kv"


class HitPolicy(enum.Enum):
    """How a pool bounds the usable prefix. The values are SGLang's names for them."""

    ALL_PAGES = "all_pages"
    """A prefix of p pages needs the pool's objects of all p pages."""

    TRAILING_PAGES = "trailing_pages"
    """A prefix of p pages needs them only for its last `trailing_pages` pages (all p, when it is shorter)."""


@dataclass(frozen=True)
class Pool:
    """One kind of state that an engine stores for every page: KV, or a sidecar such as Mamba or SWA state.

    Attributes:
        name: The pool's name. `"kv"` is the anchor that decides how far a prefix reaches at all; every other name
            is a sidecar.
        suffixes: What follows the page hash in the key of each of a page's objects, in the order asked. Any strings,
            "" included. A page counts as present when all of its objects exist, so listing the objects of several
            ranks asks for what these ranks agree on. Any iterable of strings is accepted and kept as a tuple.
        hit_policy: A `HitPolicy` or its value (`"all_pages"`, `"trailing_pages"`).
        trailing_pages: The window of `TRAILING_PAGES` in pages, at least 1; None exactly for `ALL_PAGES`.
        prefixes: What precedes the page hash in the key of each object, separator included, one for each suffix.
            None: the layout's `key_prefix`, as in SGLang. For engines whose keys name the rank before the hash.

    Raises:
        ConfigError: A value is not usable; the message names it and says what to give instead.
    """

    name: str
    suffixes: tuple[str, ...]
    hit_policy: HitPolicy = HitPolicy.ALL_PAGES
    trailing_pages: int | None = None
    prefixes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not is_text(self.name) or not self.name:
            raise ConfigError(f"a pool's name must be a string that is not empty, not {self.name!r}")
        self._set("suffixes", self._strings("suffixes", self.suffixes))
        if not self.suffixes:
            raise ConfigError(f"pool {self.name!r} has no suffixes: give one for each object that a page has in it")
        if self.prefixes is not None:
            self._set("prefixes", self._strings("prefixes", self.prefixes))
            if len(self.prefixes) != len(self.suffixes):
                raise ConfigError(
                    f"pool {self.name!r} has {len(self.prefixes)} prefixes for {len(self.suffixes)} suffixes: "
                    "give one of each for every object of a page"
                )
        affixes = self.affixes("")
        if len(set(affixes)) != len(affixes):
            twice = next(affix for i, affix in enumerate(affixes) if affix in affixes[:i])
            raise ConfigError(f"pool {self.name!r} names the object {'{page_hash}'.join(twice)!r} more than once")
        self._check_policy()

    def affixes(self, prefix: str) -> list[tuple[str, str]]:
        """What surrounds the page hash in the key of each object of a page, in the order asked.

        Args:
            prefix: What stands before the hash when the pool has no `prefixes` of its own, separator included.
        """
        return list(zip(self.prefixes or (prefix,) * len(self.suffixes), self.suffixes, strict=True))

    def _check_policy(self) -> None:
        try:
            self._set("hit_policy", HitPolicy(self.hit_policy))
        except ValueError:
            known = ", ".join(repr(policy.value) for policy in HitPolicy)
            raise ConfigError(
                f"pool {self.name!r} has the unknown hit policy {self.hit_policy!r}; known are {known}"
            ) from None
        if self.hit_policy is HitPolicy.ALL_PAGES:
            if self.trailing_pages is not None:
                raise ConfigError(
                    f"pool {self.name!r} needs all pages, so trailing_pages={self.trailing_pages!r} has no meaning: "
                    "leave it out, or choose HitPolicy.TRAILING_PAGES"
                )
        elif not is_count(self.trailing_pages):
            raise ConfigError(
                f"pool {self.name!r} needs trailing pages: trailing_pages must be how many, an integer of at least 1, "
                f"not {self.trailing_pages!r}"
            )
        elif self.name == KV_POOL:
            raise ConfigError(
                "the KV pool needs all pages: a sidecar with a trailing window has another name, "
                "and a layout without KV objects has no pool named 'kv'"
            )

    def _strings(self, field: str, value: Iterable[str]) -> tuple[str, ...]:
        # A lone string is iterable too, and would become one object for each of its characters.
        if not isinstance(value, str):
            try:
                strings = tuple(value)
            except TypeError:
                pass
            else:
                if all(isinstance(item, str) for item in strings):
                    return strings
        raise ConfigError(f"pool {self.name!r}: {field} must be a tuple of strings, not {value!r}")

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)


def is_text(value: object) -> bool:
    """Whether a value is a string."""
    return isinstance(value, str)


def is_count(value: object, *, least: int = 1) -> bool:
    """Whether a value is an integer of at least `least`. True and False are not counts."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
