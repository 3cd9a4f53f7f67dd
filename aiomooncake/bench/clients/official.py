"""The official client, and what asyncio code builds from it today."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...errors import ConnectError
from .base import KeysOnly
from .restorable import restorable_pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...layout import Layout
    from .base import Ask

__all__ = ["Async", "KeyByKey", "Loader", "Sync", "Threads", "WholePools", "open_store"]

# The client wants memory of its own even for asking; nothing is stored in it.
_MEMORY_BYTES = 16 << 20
# The official client stalls for 42 ms in a few percent of calls above 3000 keys.
_LOADER_BATCH = 2048


def open_store(master: str) -> Any:
    """An official async client, which is a sync one as well. Holds the GIL for 30 ms and more; closing it for longer.

    Raises:
        ConnectError: its setup failed.
    """
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # it is read when the library loads
    from mooncake.async_store import MooncakeDistributedStoreAsync

    store = MooncakeDistributedStoreAsync()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", _MEMORY_BYTES, _MEMORY_BYTES, "tcp", "", master)
    if code:
        raise ConnectError(f"the official client could not join {master}: its setup() returned {code}")
    return store


class Sync(KeysOnly):
    """`batch_is_exist` on the loop's own thread, which it blocks."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def bind(self, keys: list[str]) -> Ask:
        """See `Client`."""
        return partial(self._store.batch_is_exist, keys)


class Async(KeysOnly):
    """`MooncakeDistributedStoreAsync.async_batch_is_exist`: the loop's default executor, one call a question."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def bind(self, keys: list[str]) -> Ask:
        """See `Client`."""
        return partial(self._store.async_batch_is_exist, keys)


class Threads(KeysOnly):
    """`asyncio.to_thread(store.batch_is_exist, keys)`: the same by hand."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def bind(self, keys: list[str]) -> Ask:
        """See `Client`."""
        return partial(asyncio.to_thread, self._store.batch_is_exist, keys)


class KeyByKey(KeysOnly):
    """`is_exist` for one key after the other, on the loop, until one is missing: LMCache's way."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def bind(self, keys: list[str]) -> Ask:
        """See `Client`."""
        return partial(self._ask, keys)

    def _ask(self, keys: list[str]) -> int:
        is_exist = self._store.is_exist
        for position, key in enumerate(keys):
            if is_exist(key) != 1:
                return position
        return len(keys)


class Loader(KeysOnly):
    """aiodataloader over the official async client: merges what is asked in one turn of the loop, caches nothing."""

    def __init__(self, store: Any) -> None:
        from aiodataloader import DataLoader

        self._loader: DataLoader[str, int] = DataLoader(
            store.async_batch_is_exist, max_batch_size=_LOADER_BATCH, cache=False
        )

    def bind(self, keys: list[str]) -> Ask:
        """See `Client`."""
        return partial(self._loader.load, keys[0]) if len(keys) == 1 else partial(self._loader.load_many, keys)


class WholePools:
    """SGLang's way: a call for the KV keys, then one for the keys of all sidecar pools, of all pages, in a thread."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def bind(self, keys: list[str]) -> Ask:
        """See `Client`."""
        return partial(asyncio.to_thread, self._store.batch_is_exist, keys)

    async def lookup(self, page_hashes: Sequence[str], layout: Layout) -> int:
        """See `Client`."""
        return await asyncio.to_thread(self._lookup, page_hashes, layout)

    def _lookup(self, page_hashes: Sequence[str], layout: Layout) -> int:
        ask = self._store.batch_is_exist
        limit = len(page_hashes)
        if layout.kv is not None:
            limit = restorable_pages([(layout.kv, ask(layout.object_keys(page_hashes, layout.kv.name)))], limit)
            if not limit:
                return 0
        sidecars = [(pool, layout.object_keys(page_hashes, pool.name)) for pool in layout.sidecars]
        codes = iter(ask([key for _, keys in sidecars for key in keys]) if sidecars else ())
        return restorable_pages([(pool, list(islice(codes, len(keys)))) for pool, keys in sidecars], limit)
