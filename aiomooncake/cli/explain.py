"""`aiomooncake explain`: which object of which page ends the prefix?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from ..connector import connect
from ..errors import StoreError
from ..hybrid import lookup
from ..reply import ERROR, HIT, MISS, Reply
from .console import printable, stdout
from .page_map import PageMap
from .runner import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engine import Engine
    from .prompts import Prompt

__all__ = ["Recorder", "run_explain"]

_ALL_RESTORABLE, _FEWER = 0, 1
# In a pipe nothing is folded: whoever reads it may look for a key.
_PIPE_WIDTH = 10_000


def run_explain(master: str, prompt: Prompt, *, everything: bool, show_keys: bool, timeout: float) -> NoReturn:
    """Ask, print, and end with the exit status."""
    run(_explain(master, prompt, everything, show_keys, timeout))


class Recorder:
    """Asks an engine, and remembers what was answered for each key."""

    def __init__(self, engine: Engine) -> None:
        self.answers: dict[str, int] = {}
        """Mooncake's code by key: 1 a hit, 0 a miss, else an error."""
        self._engine = engine

    async def ask(self, keys: Sequence[str | bytes]) -> Reply:
        """The answers, for `hybrid.lookup`. Errors of single keys are answers too."""
        try:
            codes = list(map(int, await self._engine.batch_exists(keys)))
        except StoreError:  # it tells of one key: ask again, one by one
            codes = await asyncio.gather(*map(self._ask_one, keys))
        for key, code in zip(keys, codes, strict=True):
            assert isinstance(key, str)
            self.answers[key] = code
        errors = {position: code for position, code in enumerate(codes) if code not in (HIT, MISS)}
        return Reply(bytes(ERROR if code not in (HIT, MISS) else code for code in codes), errors)

    async def _ask_one(self, key: str | bytes) -> int:
        try:
            return int(await self._engine.exists(key))
        except StoreError as error:
            return error.code


async def _explain(master: str, prompt: Prompt, everything: bool, show_keys: bool, timeout: float) -> int:
    pages, layout = await prompt.load(timeout)
    async with connect(master, timeout=timeout) as engine:
        recorder = Recorder(engine)
        result, _ = await lookup(recorder.ask, pages, layout, errors="miss")
        if everything:
            for pool in layout.pools:
                await recorder.ask([key for key in layout.object_keys(pages, pool.name) if key not in recorder.answers])
    console = stdout()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH, highlight=False, emoji=False, markup=False)
    page_map = PageMap(pages, layout, recorder.answers, result)
    page_map.print(console)
    if show_keys:
        console.print()
        for answer, name, page, key in page_map.objects():
            print(answer, printable(name), page, printable(key), sep="\t")  # noqa: T201  # not to be folded
    return _ALL_RESTORABLE if result.pages == len(pages) else _FEWER
