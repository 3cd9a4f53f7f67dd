"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["count", "duration", "times"]


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    if seconds < 1e-3:
        value, unit = seconds * 1e6, "µs"
    elif seconds < 1:
        value, unit = seconds * 1e3, "ms"
    else:
        value, unit = seconds, "s"
    return f"{_three_digits(value)} {unit}"


def count(value: float) -> str:
    """A count or a rate: three digits, and k or M where they say more."""
    if value >= 1e6:
        return f"{_three_digits(value / 1e6)} M"
    if value >= 1e3:
        return f"{_three_digits(value / 1e3)} k"
    return f"{value:.0f}" if value == round(value) else _three_digits(value)


def times(value: float) -> str:
    """A ratio."""
    return f"{_three_digits(value)}x"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
