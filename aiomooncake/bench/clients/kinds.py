"""The contenders by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

from ...connector import connect
from . import official
from .base import Client
from .engine import EngineClient
from .floor import loop_floor, raw_socket
from .nothing import Nothing

__all__ = ["KINDS", "Kind"]

# Deadlines are kept, and none of them passes: 10,000 callers with 512 keys each wait for seconds, and what counts as a
# timeout is for the load generator to say, of every client alike.
_OPTIONS: Mapping[str, Any] = {"timeout": 60.0}

Open: TypeAlias = Callable[[str, Mapping[str, Any]], AbstractAsyncContextManager[Client]]


class Kind(NamedTuple):
    """A kind of client.

    Attributes:
        text: What it is, for the report.
        open: Connects to a master, given the engine options to use; entered on the loop that will ask.
    """

    text: str
    open: Open


@asynccontextmanager
async def _engine(master: str, options: Mapping[str, Any]) -> AsyncIterator[Client]:
    async with connect(master, **{**_OPTIONS, **options}) as engine:
        yield EngineClient(engine)


@asynccontextmanager
async def _engine_over_store(master: str, options: Mapping[str, Any]) -> AsyncIterator[Client]:
    async with connect(store=official.open_store(master), **{**_OPTIONS, **options}) as engine:
        yield EngineClient(engine)


@asynccontextmanager
async def _raw_socket(master: str, options: Mapping[str, Any]) -> AsyncIterator[Client]:
    with raw_socket(master) as client:
        yield client


@asynccontextmanager
async def _loop_floor(master: str, options: Mapping[str, Any]) -> AsyncIterator[Client]:
    async with loop_floor(master) as client:
        yield client


@asynccontextmanager
async def _nothing(master: str, options: Mapping[str, Any]) -> AsyncIterator[Client]:
    yield Nothing()


def _over_store(make: Callable[[Any], Client]) -> Open:
    @asynccontextmanager
    async def open_client(master: str, options: Mapping[str, Any]) -> AsyncIterator[Client]:
        # Never closed: that holds the GIL for seconds, and the process ends with the client.
        yield make(official.open_store(master))

    return open_client


KINDS: Mapping[str, Kind] = {
    "engine": Kind("aiomooncake over its own RPC connections", _engine),
    "engine-store": Kind("aiomooncake over a MooncakeDistributedStore", _engine_over_store),
    "loop-floor": Kind("a bare protocol on the loop: prebuilt bytes, one future, no decoding", _loop_floor),
    "raw-socket": Kind("a blocking socket: prebuilt bytes, no decoding", _raw_socket),
    "official-sync": Kind("MooncakeDistributedStore.batch_is_exist, blocking the loop", _over_store(official.Sync)),
    "official-async": Kind("MooncakeDistributedStoreAsync.async_batch_is_exist", _over_store(official.Async)),
    "to-thread": Kind("asyncio.to_thread(store.batch_is_exist, keys)", _over_store(official.Threads)),
    "dataloader": Kind("aiodataloader over the official async client", _over_store(official.Loader)),
    "key-by-key": Kind("store.is_exist, a call a key, on the loop: LMCache's way", _over_store(official.KeyByKey)),
    "whole-pools": Kind(
        "a call for KV, one for every key of all sidecars, in a thread: SGLang's way", _over_store(official.WholePools)
    ),
    "nothing": Kind("the load generator alone: each question is one turn of the loop", _nothing),
}
