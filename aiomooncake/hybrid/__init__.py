"""Hybrid lookups: how many pages of a prompt can be restored, over the KV pool and its sidecars.

`plan` and `tracks` are pure: they say what to ask and fold the answers. `lookup` holds the awaits.
"""

from __future__ import annotations

from .lookup import FIRST_WINDOW, Ask, Lookup, Prefix, lookup, prefix_length
from .result import LookupResult

__all__ = ["FIRST_WINDOW", "Ask", "Lookup", "LookupResult", "Prefix", "lookup", "prefix_length"]
