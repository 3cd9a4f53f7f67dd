"""The keys of the benchmark, known to every process by number."""

from __future__ import annotations

import hashlib

__all__ = ["page_keys"]


def page_keys(count: int, *, first: int = 0) -> list[str]:
    """`count` object keys as engines make them, 64 hexadecimal digits each; the number of a key is that of its page."""
    return [hashlib.sha256(f"page{number}".encode()).hexdigest() for number in range(first, first + count)]
