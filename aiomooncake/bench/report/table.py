"""The headlines on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from .headlines import headlines

if TYPE_CHECKING:
    from ..result import Result

__all__ = ["headline_table"]


def headline_table(result: Result) -> Table:
    """One row a comparison."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("aiomooncake", justify="right", style="bold", no_wrap=True)
    table.add_column("rounds", justify="right", style="dim", no_wrap=True)
    table.add_column("noise (A/A)", justify="right", style="dim", no_wrap=True)
    for line in headlines(result):
        table.add_row(*(text.replace("µ", "u") for text in line))
    return table
