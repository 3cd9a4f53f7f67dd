"""What is known of every page in every pool, and how it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ..layout import HitPolicy
from ..reply import HIT, MISS
from .console import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from ..hybrid import LookupResult
    from ..layout import Layout, Pool

__all__ = ["PageMap"]

_HIT, _PART, _MISSING, _ERROR, _NOT_ASKED = "#", "+", ".", "!", "-"
_MEANING = {
    _HIT: "hit",
    _PART: "some objects missing",
    _MISSING: "missing",
    _ERROR: "error",
    _NOT_ASKED: "not asked",
}
_STYLES = {_HIT: "green", _PART: "yellow", _MISSING: "red", _ERROR: "bold red", _NOT_ASKED: "dim"}
# Pages in a line, when there is room for more.
_MOST_IN_LINE = 100


class PageMap:
    """One prompt, page by page and pool by pool."""

    def __init__(self, pages: Sequence[str], layout: Layout, answers: Mapping[str, int], result: LookupResult) -> None:
        """Show `answers`, Mooncake's code for every key asked (1 a hit, 0 a miss), and the `result` of a lookup."""
        self._pages = pages
        self._layout = layout
        self._answers = answers
        self._result = result
        self._found = any(code == HIT for code in answers.values())

    def states(self, pool: Pool) -> str:
        """A character a page: "#" all of its objects are there, "+" some, "." none, "!" an error, "-" not asked."""
        return "".join(self._state(page, pool) for page in self._pages)

    def objects(self) -> Iterator[tuple[str, str, int, str]]:
        """Every object: what was answered ("hit", "missing", "not asked" or an error code), pool, page and key."""
        for pool in self._layout.pools:
            for number, page in enumerate(self._pages):
                for key in self._layout.object_keys([page], pool.name):
                    yield self._answer(key), pool.name, number, key

    def print(self, console: Console) -> None:
        """The verdict, a line a pool with what stops it, and the map."""
        console.print(f"{self._result.pages} of {len(self._pages)} pages can be restored\n", style="bold")
        console.print(self._pools())
        console.print()
        self._print_map(console)
        if not self._found:
            console.print(
                "\nNothing is stored under these keys. If the engine did store this prompt, its model name, tag, ranks,"
                " page size or hash seed are not those of the layout: compare a key above with one that it wrote."
            )

    def _pools(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("pool", overflow="fold")
        table.add_column("needs")
        table.add_column("allows", justify="right")
        table.add_column("first key missing behind", overflow="fold")
        for pool in self._layout.pools:
            trailing = pool.hit_policy is HitPolicy.TRAILING_PAGES
            asked = bool(self.states(pool).strip(_NOT_ASKED))
            allows = self._result.pool_pages.get(pool.name, 0)
            table.add_row(
                Text(printable(pool.name)),
                f"last {pool.trailing_pages}" if trailing else "all",
                str(allows) if asked else "?",
                Text(printable(self._first_gap(pool, allows))),
            )
        return table

    def _first_gap(self, pool: Pool, start: int) -> str:
        for number in range(start, len(self._pages)):
            for key in self._layout.object_keys(self._pages[number : number + 1], pool.name):
                code = self._answers.get(key, HIT)
                if code != HIT:
                    return f"page {number}: {key}" + ("" if code == MISS else f" (error {code})")
        return ""

    def _print_map(self, console: Console) -> None:
        pools = [(printable(pool.name), self.states(pool)) for pool in self._layout.pools]
        margin = max(len("page"), *(len(name) for name, _ in pools)) + 2
        step = min(_MOST_IN_LINE, max(10, (console.width - margin) // 10 * 10))
        for start in range(0, len(self._pages), step):
            stop = min(start + step, len(self._pages))
            ruler = "".join(f"{number:<10}" for number in range(start, stop, 10)).rstrip()
            console.print(Text(f"{'page':{margin}}{ruler}", "dim"))
            for name, states in pools:
                line = Text(f"{name:{margin}}")
                for state in states[start:stop]:
                    line.append(state, _STYLES[state])
                console.print(line)
        seen = [state for state in _MEANING if any(state in states for _, states in pools)]
        console.print(Text(", ".join(f"{state} {_MEANING[state]}" for state in seen), "dim"))

    def _state(self, page: str, pool: Pool) -> str:
        codes = [self._answers.get(key) for key in self._layout.object_keys([page], pool.name)]
        asked = [code for code in codes if code is not None]
        if not asked:
            return _NOT_ASKED
        if any(code not in (HIT, MISS) for code in asked):
            return _ERROR
        return _HIT if all(asked) else _PART if any(asked) else _MISSING

    def _answer(self, key: str) -> str:
        code = self._answers.get(key)
        if code is None:
            return _MEANING[_NOT_ASKED]
        return _MEANING[_HIT] if code == HIT else _MEANING[_MISSING] if code == MISS else f"error {code}"
