from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

import aiomooncake as am
from aiomooncake.bench.delay import DelayedMaster

if TYPE_CHECKING:
    from ..conftest import SharedCluster

pytestmark = pytest.mark.anyio


async def test_a_delayed_master_is_as_far_away_as_said(cluster: SharedCluster) -> None:
    await cluster.put("far away")
    async with DelayedMaster(cluster.address) as delayed:
        assert await delayed.set_round_trip(0.002) > 0.0015
        async with am.connect(delayed.address) as engine:
            assert (await engine.batch_exists(["far away", "farther"])).tolist() == [True, False]


async def test_the_proxy_keeps_every_byte_in_order() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    sent = os.urandom(8 << 20)
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        async with DelayedMaster(f"{host}:{port}") as delayed:
            host, _, port = delayed.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent
            writer.close()
            await writer.wait_closed()
