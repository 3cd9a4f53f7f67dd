"""`aiomooncake lookup`: which of these keys are stored?"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from rich.table import Table
from rich.text import Text

from ..connector import connect
from .console import fail, format_duration, printable, stdout
from .keys import gather_keys
from .runner import MISUSED, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

__all__ = ["run_lookup"]

_ALL_EXIST, _SOME_MISSING = 0, 1


def run_lookup(
    master: str, arguments: Sequence[str], file: Path | None, *, prefix: bool, as_json: bool, timeout: float
) -> NoReturn:
    """Ask, print, and end with the exit status."""
    keys = gather_keys(arguments, file)
    if not keys:
        fail("no keys: give some as arguments, or a file with --file, or - to read them from stdin", MISUSED)
    run((_prefix if prefix else _exists)(master, keys, as_json, timeout))


async def _exists(master: str, keys: Sequence[bytes], as_json: bool, timeout: float) -> int:
    async with connect(master, timeout=timeout) as engine:
        start = time.perf_counter()
        answers: list[bool] = (await engine.batch_exists(keys)).tolist()
        seconds = time.perf_counter() - start
    console = stdout()
    found = sum(answers)
    if as_json:
        pairs = zip(keys, answers, strict=True)
        _print_json({"found": found, "asked": len(keys), "keys": [{"key": _text(k), "exists": e} for k, e in pairs]})
    elif console.is_terminal:
        _print_table(console, keys, answers)
        console.print(f"{found} of {len(keys)} stored ({format_duration(seconds)})", style="dim")
    else:
        pairs = zip(keys, answers, strict=True)
        sys.stdout.buffer.writelines(b"%s\t%s\n" % (b"yes" if exists else b"no", key) for key, exists in pairs)
    return _ALL_EXIST if found == len(keys) else _SOME_MISSING


async def _prefix(master: str, keys: Sequence[bytes], as_json: bool, timeout: float) -> int:
    async with connect(master, timeout=timeout) as engine:
        start = time.perf_counter()
        length = await engine.prefix_length(keys)
        seconds = time.perf_counter() - start
    console = stdout()
    if as_json:
        _print_json({"prefix": length, "asked": len(keys)})
    elif console.is_terminal:
        note = f" of {len(keys)} keys from the first on ({format_duration(seconds)})"
        console.print(Text.assemble((str(length), "bold"), (note, "dim")))
    else:
        print(length)  # noqa: T201  # the result
    return _ALL_EXIST if length == len(keys) else _SOME_MISSING


def _print_table(console: Console, keys: Sequence[bytes], answers: Sequence[bool]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("stored", no_wrap=True)
    table.add_column("key", overflow="fold")
    for key, exists in zip(keys, answers, strict=True):
        table.add_row(Text("yes", "green") if exists else Text("no", "yellow"), Text(printable(key)))
    console.print(table)


def _print_json(answer: dict[str, object]) -> None:
    print(json.dumps(answer))  # noqa: T201  # the result


def _text(key: bytes) -> str:
    """For JSON, which has no bytes: what is no UTF-8 becomes lone surrogates, as in Python's own file names."""
    return key.decode(errors="surrogateescape")
