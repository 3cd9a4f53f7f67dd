"""What this process holds."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
from pathlib import Path
from typing import NamedTuple

__all__ = ["Held", "peak_rss"]

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)  # glibc's


class Held(NamedTuple):
    """At one moment when nothing is asked: resident memory in bytes, and numbers of the rest."""

    rss: int
    fds: int
    threads: int
    tasks: int

    @classmethod
    def now(cls) -> Held:
        """Count, once garbage is collected and what malloc keeps for later is given back; on the event loop."""
        gc.collect()
        _malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            rss=pages * os.sysconf("SC_PAGE_SIZE"),
            fds=len(os.listdir("/proc/self/fd")),
            threads=len(os.listdir("/proc/self/task")),
            tasks=len(asyncio.all_tasks()),
        )

    def __str__(self) -> str:
        return f"RSS {self.rss / 2**20:.1f} MiB, {self.fds} fds, {self.threads} threads, {self.tasks} tasks"


def peak_rss() -> int:
    """The most memory that this process ever had resident, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
