"""Keys from the command line, files and stdin: bytes, exactly as given."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .console import fail
from .runner import MISUSED

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["gather_keys", "read_keys"]

_STDIN = "-"


def gather_keys(arguments: Iterable[str], file: Path | None) -> list[bytes]:
    """The keys given as arguments, "-" replaced by those on stdin, then those of the file."""
    keys: list[bytes] = []
    for argument in arguments:
        keys += read_keys(Path(_STDIN)) if argument == _STDIN else [os.fsencode(argument)]
    if file is not None:
        keys += read_keys(file)
    return keys


def read_keys(file: Path) -> list[bytes]:
    """One key a line; empty lines are skipped. "-" is stdin. Ends the command when the file cannot be read."""
    try:
        data = sys.stdin.buffer.read() if str(file) == _STDIN else file.read_bytes()
    except OSError as error:
        fail(f"cannot read keys from {file}: {error.strerror}", MISUSED)
    except KeyboardInterrupt:  # typer would end with status 1, which means that a key is missing
        raise typer.Exit(128 + signal.SIGINT) from None
    # Not splitlines: a key may hold a lone carriage return.
    lines = (line.removesuffix(b"\r") for line in data.split(b"\n"))
    return [line for line in lines if line]
