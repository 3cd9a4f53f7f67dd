"""Who takes part, by the names that reports use."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, NamedTuple

from ..errors import ConfigError
from .clients import KINDS

__all__ = [
    "AGAIN",
    "ASYNCIO",
    "DATALOADER",
    "ENGINE",
    "KEY_BY_KEY",
    "LOOP_FLOOR",
    "NOTHING",
    "OFFICIAL",
    "OFFICIAL_SYNC",
    "OVER_STORE",
    "RAW_SOCKET",
    "TO_THREAD",
    "WHOLE_POOLS",
    "Contender",
    "in_interpreter",
    "with_connections",
]


class Contender(NamedTuple):
    """A client in a process of its own.

    Attributes:
        label: Its name in results; short, for the legends of charts.
        kind: A name in `clients.KINDS`.
        loop: "uvloop" or "asyncio".
        options: Engine options as (name, value) pairs, for an engine.
        again: Tells apart processes that are otherwise the same.
        python: The interpreter of its process.
    """

    label: str
    kind: str
    loop: str = "uvloop"
    options: tuple[tuple[str, Any], ...] = ()
    again: bool = False
    python: str = sys.executable

    @property
    def text(self) -> str:
        """What it is, for readers."""
        options = "".join(f", {name}={value}" for name, value in self.options)
        again = "; a second process, to show how far apart equals are" if self.again else ""
        return f"{KINDS[self.kind].text} ({self.loop}{options}){again}"


ENGINE = Contender("aiomooncake", "engine")
AGAIN = Contender("aiomooncake (A/A)", "engine", again=True)
ASYNCIO = Contender("aiomooncake on asyncio", "engine", loop="asyncio")
OVER_STORE = Contender("aiomooncake over a store", "engine-store")
LOOP_FLOOR = Contender("loop floor", "loop-floor")
RAW_SOCKET = Contender("raw socket", "raw-socket")
OFFICIAL_SYNC = Contender("official, blocking", "official-sync")
OFFICIAL = Contender("official async", "official-async")
TO_THREAD = Contender("asyncio.to_thread", "to-thread")
DATALOADER = Contender("aiodataloader", "dataloader")
KEY_BY_KEY = Contender("key by key (LMCache)", "key-by-key")
WHOLE_POOLS = Contender("whole pools (SGLang)", "whole-pools")
NOTHING = Contender("load generator alone", "nothing")


def with_connections(count: int) -> Contender:
    """The engine with so many connections."""
    return Contender(f"{count} connection{'s' * (count > 1)}", "engine", options=(("connections", count),))


def in_interpreter(python: str) -> Contender:
    """The engine in another interpreter.

    Raises:
        ConfigError: it is none, or has no aiomooncake with the extra `bench`.
    """
    code = "import platform, aiomooncake.bench.worker; print(platform.python_version())"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{python} cannot be run: {error}") from error
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise ConfigError(f"{python} cannot run a load generator ({reason}); install aiomooncake[bench] for it")
    return Contender(f"Python {found.stdout.strip()}", "engine", python=python)
