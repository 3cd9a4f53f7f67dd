"""What the commands print with. Words and ASCII only, so that every terminal and every locale can show it."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

__all__ = ["fail", "format_duration", "printable", "stderr", "stdout"]


def stdout() -> Console:
    """For results. Colours only on a terminal, and not with NO_COLOR."""
    return Console(highlight=False, emoji=False, markup=False)


def stderr() -> Console:
    """For progress and notes."""
    return Console(stderr=True, highlight=False, emoji=False, markup=False)


def fail(message: str, status: int) -> NoReturn:
    """End the command with one clear message."""
    sys.stdout.flush()
    stderr().print(Text.assemble("aiomooncake: ", ("error: ", "red"), printable(message, keep="\n")), soft_wrap=True)
    raise typer.Exit(status)


def printable(text: str | bytes, *, keep: str = "") -> str:
    """Text that does nothing to a terminal: control characters and what is no UTF-8 become escapes."""
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def format_duration(seconds: float) -> str:
    """Three digits and a unit: "81.3 us", "5.42 ms", "1.20 s"."""
    if seconds < 1e-3:
        value, unit = seconds * 1e6, "us"
    elif seconds < 1:
        value, unit = seconds * 1e3, "ms"
    else:
        value, unit = seconds, "s"
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f} {unit}"
