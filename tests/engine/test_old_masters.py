"""Masters of earlier releases, which take other arguments and say other things of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiomooncake as am
from aiomooncake.local import LocalCluster
from aiomooncake.testing import FaultProxy

from ..old_masters import OLD_VERSIONS, old_master
from .support import answer_soon, host_and_port, new_keys, outcomes, until

if TYPE_CHECKING:
    from ..conftest import SharedCluster

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_sockets")]


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
@pytest.mark.parametrize("version", OLD_VERSIONS)
async def test_an_old_master_is_asked_in_the_form_that_it_knows(version: str) -> None:
    keys = new_keys(5000)
    async with LocalCluster(master_binary=old_master(version)) as cluster:
        await cluster.put(keys[:300])
        async with am.connect(f"mooncake://{cluster.address}?tenant=whoever", timeout=20) as engine:
            stats = engine.stats()
            assert stats.master_takes_tenant is False
            assert stats.master_version == (None if version.startswith("0.3.7") else "2.0.0")
            assert await engine.exists(keys[0])
            assert not await engine.exists(keys[-1])
            assert await outcomes(engine.exists(key) for key in keys[200:400]) == [True] * 100 + [False] * 100
            answers = await engine.batch_exists(keys)
            assert answers[:300].all()
            assert not answers[300:].any()
            assert await engine.prefix_length(keys) == 300
            assert (await engine.batch_exists(["", "a\0b", b"\xff", "x" * 100_000])).tolist() == [False] * 4
            await cluster.kill_master()
            await cluster.restart_master()
            assert not await answer_soon(engine, keys[0])
            assert engine.stats().master_takes_tenant is False


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_a_master_may_be_upgraded_and_downgraded_under_an_engine(cluster: SharedCluster) -> None:
    (hit,) = new_keys(1)
    await cluster.put(hit)
    async with (
        LocalCluster(master_binary=old_master("0.3.9"), store=False) as old,
        FaultProxy(*host_and_port(old.address)) as proxy,
        am.connect(proxy.address) as engine,
    ):
        for address, takes_tenant in ((cluster.address, True), (old.address, False), (cluster.address, True)):
            proxy._target = host_and_port(address)
            await proxy.cut()
            await until(lambda: engine.stats().connections_open == 0)
            assert await answer_soon(engine, hit) == takes_tenant
            assert engine.stats().master_takes_tenant is takes_tenant
            await until(lambda: engine.stats().connections_open == 2)
