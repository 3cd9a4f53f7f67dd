"""Several masters, of which one serves; and tenants."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiomooncake as am
from aiomooncake.errors import ConnectError, ConnectionLostError, StoreError
from aiomooncake.local import LocalCluster
from aiomooncake.testing import ScriptedPeer

from .support import HANG, answer_soon, freeze, new_keys, outcomes, stay_silent, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from ..conftest import SharedCluster

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_sockets")]


@pytest.fixture
async def two(anyio_backend: object) -> AsyncIterator[tuple[LocalCluster, LocalCluster]]:
    async with AsyncExitStack() as stack:
        clusters = [LocalCluster(store=False) for _ in range(2)]
        for cluster in clusters:
            await stack.enter_async_context(cluster)
        yield clusters[0], clusters[1]


def target(*addresses: str) -> str:
    return f"mooncake://{','.join(addresses)}"


@pytest.fixture
def dead() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


async def test_a_dead_first_master_is_passed_over(cluster: SharedCluster, dead: str) -> None:
    (hit,) = new_keys(1)
    await cluster.put(hit)
    async with am.connect(target(dead, cluster.address, dead)) as engine:
        assert engine.stats().master == cluster.address
        assert await engine.exists(hit)
        await until(lambda: engine.stats().connections_open == 2)


async def test_a_hung_first_master_is_passed_over(cluster: SharedCluster) -> None:
    (hit,) = new_keys(1)
    await cluster.put(hit)
    async with ScriptedPeer(stay_silent) as hung:
        async with am.connect(target(hung.address, cluster.address)) as engine:
            assert engine.stats().master == cluster.address
            assert await engine.exists(hit)
        assert len(hung.received) == 1


async def test_the_first_that_serves_is_asked_and_no_other(two: tuple[LocalCluster, LocalCluster]) -> None:
    first, other = two
    async with am.connect(target(first.address, other.address), connections=4) as engine:
        await outcomes(engine.exists(key) for key in new_keys(100))
        assert engine.stats().master == first.address
        assert (await other.metrics())["master_batch_exist_key_requests_total"] == 0


async def test_when_none_serves_each_is_named_with_its_reason(dead: str) -> None:
    async with ScriptedPeer(stay_silent) as silent, ScriptedPeer(leave) as leaving:
        with pytest.raises(ConnectError) as caught:
            await am.connect(target(dead, leaving.address), timeout=20)
        for part in (dead, "refused", leaving.address, "lost"):
            assert part in str(caught.value)
        with pytest.raises(ConnectError, match="not ready within"):
            await am.connect(target(dead, silent.address), timeout=0.1)


async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(20)


async def test_the_engine_moves_to_the_master_that_serves(two: tuple[LocalCluster, LocalCluster]) -> None:
    first, other = two
    async with am.connect(target(first.address, other.address)) as engine:
        waiting = [asyncio.ensure_future(outcomes([engine.exists(key)])) for key in new_keys(50)]
        await first.kill_master()
        for (ended,) in await asyncio.gather(*waiting):
            assert ended is False or isinstance(ended, (ConnectError, ConnectionLostError))
        assert not await answer_soon(engine, "a")
        assert engine.stats().master == other.address
        await first.restart_master()
        assert not await answer_soon(engine, "a")
        assert engine.stats().master == other.address  # it serves, so there is no reason to move
        await other.kill_master()
        assert not await answer_soon(engine, "a")
        assert engine.stats().master == first.address


async def test_the_engine_moves_from_a_master_that_hangs(two: tuple[LocalCluster, LocalCluster]) -> None:
    first, other = two
    async with am.connect(target(first.address, other.address), timeout=20) as engine:
        await freeze(first)
        for ended in await outcomes(engine.exists(key) for key in new_keys(50)):
            assert ended is False or isinstance(ended, ConnectionLostError)
        assert not await answer_soon(engine, "a")
        assert engine.stats().master == other.address
        first.continue_master()
        with anyio.fail_after(HANG):
            while engine.stats().connections_open < 2:  # the second is made when a question could use it
                assert not await engine.exists("a")
        assert engine.stats().master == other.address


@pytest.fixture
async def tenants(anyio_backend: object, tmp_path: Path) -> AsyncIterator[LocalCluster]:
    quotas = tmp_path / "tenants.yaml"
    quotas.write_text(
        "version: 1\ntenants:\n" + "".join(f"  - name: {name}\n    quota: 64MB\n" for name in ("default", "a"))
    )
    arguments = (
        "--enable_multi_tenants=true",
        "--tenant_quota_connector_type=file",
        f"--tenant_quota_connector_uri={quotas}",
    )
    async with LocalCluster(master_args=arguments) as cluster:
        yield cluster


async def test_a_tenant_sees_its_own_keys_and_an_invalid_one_is_an_error(tenants: LocalCluster) -> None:
    (hit,) = new_keys(1)
    await tenants.put(hit)

    def connect(tenant: str, **options: Any) -> am.Connector:
        return am.connect(f"mooncake://{tenants.address}?tenant={tenant}", **options)

    for tenant in ("default", ""):
        async with connect(tenant) as engine:
            assert await engine.exists(hit)
    for tenant in ("a", "unknown"):
        async with connect(tenant) as engine:
            assert not await engine.exists(hit)
            assert await engine.prefix_length([hit]) == 0
    async with connect("_invalid") as engine:
        for question in (engine.exists(hit), engine.batch_exists([hit, "x"]), engine.prefix_length([hit])):
            (error,) = await outcomes([question])
            assert isinstance(error, StoreError)
            assert (error.code, error.name, error.key) == (-600, "INVALID_PARAMS", hit)
        assert engine.stats().errors == 3
        assert engine.stats().connections_lost == 0
    async with connect("_invalid", errors="miss") as engine:
        assert not await engine.exists(hit)
        assert not (await engine.batch_exists([hit, "x"])).any()
        assert await engine.prefix_length([hit]) == 0
        assert engine.stats().degraded == 3


async def test_a_long_tenant_is_sent_whole(tenants: LocalCluster) -> None:
    with anyio.fail_after(HANG):
        async with am.connect(f"mooncake://{tenants.address}?tenant={'t' * 300}") as engine:
            assert await outcomes([engine.exists("a"), engine.exists("b")]) == [False, False]
