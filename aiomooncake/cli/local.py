"""`aiomooncake local`: a cluster in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import anyio

from ..errors import ConnectError
from ..local import LocalCluster
from .console import fail, stdout
from .keys import read_keys
from .runner import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["run_local"]

_MASTER_ENDED = 1
_STILL_THERE_INTERVAL = 0.5
_LOG_LINES, _LOG_WIDTH = 6, 160


def run_local(keys_file: Path | None, *, segment_bytes: int, lease: float) -> NoReturn:
    """Serve until a signal, and end with the exit status."""
    keys = [] if keys_file is None else read_keys(keys_file)
    run(_serve(keys, segment_bytes, lease), interrupted=0)


async def _serve(keys: Sequence[bytes], segment_bytes: int, lease: float) -> int:
    async with LocalCluster(segment_bytes=segment_bytes, lease_ttl=lease) as cluster:
        if keys:
            await cluster.put(keys)
        # The address alone on its line, and out at once: scripts wait for it.
        print(cluster.address, flush=True)  # noqa: T201  # the result
        console = stdout()
        if console.is_terminal:
            stored = f", {len(set(keys))} keys stored" if keys else ""
            console.print(f"master {cluster.master_pid} serves{stored}; Ctrl-C ends it", style="dim")
            console.print(f"  aiomooncake lookup {cluster.address} KEY ...", style="dim")
            console.print(f"  curl {cluster.metrics_url}/metrics", style="dim")
        while True:
            await anyio.sleep(_STILL_THERE_INTERVAL)
            try:
                _ = cluster.master_pid
            except ConnectError:
                last = "".join(f"\n  {line[:_LOG_WIDTH]}" for line in cluster.log().splitlines()[-_LOG_LINES:])
                fail(f"the master ended by itself; its log ends with:{last}", _MASTER_ENDED)
