"""Colours: one for each contender, in light and in dark."""

from __future__ import annotations

from typing import NamedTuple

from ..contenders import (
    AGAIN,
    ASYNCIO,
    DATALOADER,
    ENGINE,
    KEY_BY_KEY,
    LOOP_FLOOR,
    NOTHING,
    OFFICIAL,
    OFFICIAL_SYNC,
    OVER_STORE,
    RAW_SOCKET,
    TO_THREAD,
    WHOLE_POOLS,
)

__all__ = ["LIGHT", "NAMED", "Palette", "variables"]


class _Colour(NamedTuple):
    name: str
    light: str
    dark: str


_PAPER = _Colour("paper", "#ffffff", "#16181d")
_INK = _Colour("ink", "#1c1f24", "#e6e8ec")
_SOFT = _Colour("soft", "#5c6470", "#9aa3b0")
_LINE = _Colour("line", "#dfe3e8", "#30353e")
_OURS = _Colour("ours", "#0b62c4", "#5aa9ff")
_CLIENTS = {
    ENGINE.label: _OURS,
    AGAIN.label: _Colour("again", "#7fb2ea", "#2f6fb5"),
    ASYNCIO.label: _Colour("asyncio", "#00857a", "#35c4b5"),
    OVER_STORE.label: _Colour("store", "#6b4fc8", "#a992ff"),
    LOOP_FLOOR.label: _Colour("floor", "#6c7480", "#a7b0bd"),
    RAW_SOCKET.label: _Colour("raw", "#9aa1ab", "#727b88"),
    OFFICIAL_SYNC.label: _Colour("sync", "#a8660a", "#e0a045"),
    OFFICIAL.label: _Colour("official", "#d2500a", "#ff8b47"),
    TO_THREAD.label: _Colour("thread", "#b23a6a", "#f07fae"),
    DATALOADER.label: _Colour("loader", "#4c8a1b", "#8fd052"),
    KEY_BY_KEY.label: _Colour("perkey", "#8a3fa0", "#d08ae6"),
    WHOLE_POOLS.label: _Colour("pools", "#c22f2f", "#ff7a70"),
    NOTHING.label: _Colour("nothing", "#c3c8cf", "#4b525d"),
}
_COLOURS = (_PAPER, _INK, _SOFT, _LINE, *_CLIENTS.values())


class Palette:
    """What charts are drawn with.

    Args:
        values: A colour for each name.
    """

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self.paper, self.ink, self.soft, self.line = (values[c.name] for c in (_PAPER, _INK, _SOFT, _LINE))

    def of(self, client: str) -> str:
        """The colour of a contender; that of the engine for one that is the engine with other options."""
        return self._values[_CLIENTS.get(client, _OURS).name]

    def named(self, svg: str) -> str:
        """The same picture with CSS variables in place of these colours."""
        for name, value in self._values.items():
            svg = svg.replace(value, f"var(--{name})")
        return svg


LIGHT = Palette({colour.name: colour.light for colour in _COLOURS})
# Colours that stand for names: no two are equal, and none is one that a drawing library uses by itself.
NAMED = Palette({colour.name: f"#fe01{number:02x}" for number, colour in enumerate(_COLOURS)})


def variables(*, dark: bool) -> str:
    """CSS declarations of all colours."""
    return "".join(f"--{colour.name}:{colour.dark if dark else colour.light};" for colour in _COLOURS)
