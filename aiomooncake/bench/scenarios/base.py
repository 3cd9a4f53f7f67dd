"""What a scenario is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..session import Session, Settings

__all__ = ["Scenario"]


class Scenario(NamedTuple):
    """One question that the benchmark answers.

    Attributes:
        name: For `--only`, and in result files.
        title: What it answers.
        text: How, in a sentence or two.
        run: Takes the measurements.
        slices: How many measurements that will be.
    """

    name: str
    title: str
    text: str
    run: Callable[[Session], Awaitable[None]]
    slices: Callable[[Settings], int]
