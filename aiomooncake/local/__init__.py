"""A real Mooncake on this machine, for demos, tests and benchmarks.

`LocalCluster` starts a `mooncake_master` and one client that holds data, both on loopback and both gone when it is
closed, however that comes about. It needs the Mooncake wheel (`pip install 'aiomooncake[non-cuda]'`) on Linux.
"""

from __future__ import annotations

from .cluster import LocalCluster

__all__ = ["LocalCluster"]
