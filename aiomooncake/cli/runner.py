"""Run a command on uvloop: signals end it in order, errors become one line and an exit status."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, NoReturn

import typer
import uvloop

from ..errors import AioMooncakeError, ConfigError
from .console import fail

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["FAILED", "MISUSED", "run"]

MISUSED = 2
"""Exit status: the command was not understood, or cannot work here."""
FAILED = 3
"""Exit status: the master could not be asked."""


def run(command: Coroutine[Any, Any, int], *, interrupted: int | None = None) -> NoReturn:
    """End the process with the status that `command` returns.

    SIGINT and SIGTERM cancel the command, so everything it holds is closed; then the status is `interrupted`, or
    what a shell gives for the signal.
    """
    try:
        status = uvloop.run(_interruptible(command, interrupted))
    except ConfigError as error:
        fail(str(error), MISUSED)
    except AioMooncakeError as error:
        fail(str(error), FAILED)
    raise typer.Exit(status)


async def _interruptible(command: Coroutine[Any, Any, int], interrupted: int | None) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def interrupt(number: int) -> None:
        if not received:  # once: impatience must not cut short the closing
            task.cancel()
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await command
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0] if interrupted is None else interrupted
