"""`aiomooncake lookup --layout`: how many pages of this prompt can be restored?"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NoReturn

from rich.table import Table
from rich.text import Text

from ..connector import connect
from .console import format_duration, printable, stdout
from .runner import run

if TYPE_CHECKING:
    from ..hybrid import LookupResult
    from .prompts import Prompt

__all__ = ["run_page_lookup"]

_ALL_RESTORABLE, _FEWER = 0, 1


def run_page_lookup(master: str, prompt: Prompt, *, as_json: bool, timeout: float) -> NoReturn:
    """Ask, print, and end with the exit status."""
    run(_look_up(master, prompt, as_json, timeout))


async def _look_up(master: str, prompt: Prompt, as_json: bool, timeout: float) -> int:
    pages, layout = await prompt.load(timeout)
    async with connect(master, timeout=timeout) as engine:
        start = time.perf_counter()
        result = await engine.lookup(pages, layout)
        seconds = time.perf_counter() - start
    if as_json:
        print(json.dumps({"asked": len(pages), **_members(result)}))  # noqa: T201  # the result
    elif (console := stdout()).is_terminal:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("pool", overflow="fold")
        table.add_column("pages", justify="right")
        for name, length in result.pool_pages.items():
            table.add_row(Text(printable(name)), str(length))
        if result.pool_pages:
            console.print(table)
        trips = "1 round trip" if result.round_trips == 1 else f"{result.round_trips} round trips"
        note = f" ({result.keys_queried} keys, {trips}, {format_duration(seconds)})"
        console.print(f"{result.pages} of {len(pages)} pages can be restored", Text(note, "dim"), sep="")
    else:
        print(result.pages)  # noqa: T201  # the result
    return _ALL_RESTORABLE if result.pages == len(pages) else _FEWER


def _members(result: LookupResult) -> dict[str, object]:
    names = ("pages", "kv_pages", "pool_pages", "keys_queried", "round_trips")
    return {name: getattr(result, name) for name in names}
