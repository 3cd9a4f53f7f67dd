"""An engine that follows the leader in etcd: beside real masters that lose their leader, and with one named by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import anyio
import pytest

import aiomooncake as am
from aiomooncake.errors import AioMooncakeError, ConnectError, ConnectionLostError, RequestTimeout
from aiomooncake.local import LocalCluster
from aiomooncake.testing import FaultProxy

from ..engine.support import HANG, host_and_port, new_keys, outcome, outcomes, until
from .following import key_of
from .masters import HaMasters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ..conftest import SharedCluster
    from .etcd_server import EtcdServer

pytestmark = pytest.mark.anyio

GONE = (ConnectError, ConnectionLostError)

Ended: TypeAlias = "bool | AioMooncakeError"


def target_in(etcd: EtcdServer, cluster_name: str) -> str:
    return f"etcd://{etcd.address}/{cluster_name}"


async def opened(target: str) -> am.Engine:
    return await am.connect(target, timeout=HANG)


# ---- real masters in HA mode --------------------------------------------------------------------------------------
# A failover takes 10 s, so there is one for each way in which a leader goes, and all that is to be seen is seen there.


@pytest.fixture(scope="module")
async def masters(anyio_backend: object, needs_etcd: None) -> AsyncIterator[HaMasters]:
    async with HaMasters() as masters:
        yield masters


@asynccontextmanager
async def under_load(engine: am.Engine, key: str, *, timeout: float = 2.0) -> AsyncIterator[list[Ended]]:
    """Fifty callers ask for `key` until the context ends, in which every one of them gets to its end."""
    ended: list[Ended] = []
    stop = anyio.Event()

    async def caller() -> None:
        while not stop.is_set():
            with anyio.fail_after(timeout + HANG):
                ended.append(await outcome(engine.exists(key, timeout=timeout)))
            with anyio.move_on_after(0.005):
                await stop.wait()

    async with anyio.create_task_group() as callers:
        for _ in range(50):
            callers.start_soon(caller)
        await until(lambda: len(ended) >= 200)
        yield ended
        stop.set()


def check_story(ended: Sequence[Ended], *, allowed: tuple[type[Exception], ...]) -> None:
    """First the old leader has the key, then nobody answers, then the new one has not. It never goes back."""
    answers = [answer for answer in ended if isinstance(answer, bool)]
    assert answers[0] is True
    assert answers[-1] is False
    assert answers == sorted(answers, reverse=True)
    assert not [error for error in ended if not isinstance(error, (bool, *allowed))]


one_loop = pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"], scope="module")


@one_loop
async def test_a_killed_leader_is_followed_by_the_next(masters: HaMasters) -> None:
    held, later = new_keys(2)
    await masters.put([held])
    async with am.connect(masters.target) as engine:
        async with under_load(engine, held) as ended:
            assert all(answer is True for answer in ended)
            old = await masters.kill_leader()
            await until(lambda: isinstance(ended[-1], ConnectError))
            assert "refused" in str(ended[-1])
            new = await masters.wait_serving(other_than=old)
            await until(lambda: ended[-1] is False)
        check_story(ended, allowed=GONE)  # and no timeouts: it fails at once while there is no leader
        stats = engine.stats()
        assert (stats.master, stats.pending_keys, stats.calls_in_flight, stats.timeouts) == (str(new), 0, 0, 0)
        await masters.put([later])
        assert (await engine.batch_exists([held, later])).tolist() == [False, True]
    masters.restart(old)


@one_loop
async def test_late_answers_of_a_leader_that_hung_are_not_given(masters: HaMasters) -> None:
    held, later = new_keys(2)
    await masters.put([held])
    async with am.connect(masters.target) as engine:
        async with under_load(engine, held, timeout=0.5) as ended:
            old = await masters.stop_leader()
            await until(lambda: isinstance(ended[-1], RequestTimeout))
            late = [asyncio.ensure_future(outcome(engine.exists(held, timeout=None))) for _ in range(100)]
            await masters.wait_leader(other_than=old)
            await until(lambda: engine.stats().connections_open == 0)
            masters.go_on(old)  # it has the questions, and the key
            new = await masters.wait_serving(other_than=old)
            await until(lambda: ended[-1] is False)
            with anyio.fail_after(HANG):
                assert True not in await asyncio.gather(*late)
        check_story(ended, allowed=(*GONE, RequestTimeout))
        stats = engine.stats()
        assert (stats.master, stats.pending_keys, stats.calls_in_flight) == (str(new), 0, 0)
        await masters.put([later])
        assert (await engine.batch_exists([held, later])).tolist() == [False, True]
    masters.restart(old)


@one_loop
async def test_without_etcd_the_last_leader_is_asked_and_with_it_the_next_is_found(masters: HaMasters) -> None:
    (held,) = new_keys(1)
    await masters.put([held])
    async with am.connect(masters.target) as engine:
        async with under_load(engine, held) as ended:
            masters.etcd.kill()
            begin = len(ended)
            await until(lambda: len(ended) > begin + 1000)
            await masters.etcd.start()  # before the masters give up, too
            begin = len(ended)
            await until(lambda: len(ended) > begin + 1000)
            assert all(answer is True for answer in ended)
            old = await masters.terminate_leader()
            new = await masters.wait_serving(other_than=old)
            await until(lambda: ended[-1] is False)
        check_story(ended, allowed=GONE)
        assert engine.stats().master == str(new)


# ---- a leader named by hand ---------------------------------------------------------------------------------------


async def test_no_leader_and_no_etcd_are_clear_errors(etcd: EtcdServer, cluster_name: str) -> None:
    with pytest.raises(ConnectError, match="no Mooncake master is named as the leader"):
        await am.connect(target_in(etcd, cluster_name))
    with pytest.raises(ConnectError, match=r"no etcd tells .*127\.0\.0\.1:1: "):
        await am.connect("etcd://127.0.0.1:1/cluster")


async def test_a_leader_that_is_named_later_is_found(
    etcd: EtcdServer, cluster: SharedCluster, cluster_name: str
) -> None:
    (held,) = new_keys(1)
    await cluster.put(held)
    async with am.connect(target_in(etcd, cluster_name), errors="miss") as engine:
        assert not await engine.exists(held)
        assert engine.stats().degraded == 1
        await etcd.put(key_of(cluster_name), cluster.address)
        with anyio.fail_after(HANG):
            while not await engine.exists(held):
                await anyio.sleep(0.005)
        assert engine.stats().master == cluster.address


async def test_what_was_asked_of_the_old_leader_is_asked_again_of_the_new_one(
    etcd: EtcdServer, cluster: SharedCluster, cluster_name: str
) -> None:
    (held,) = new_keys(1)
    await cluster.put(held)
    async with LocalCluster(store=False) as empty, FaultProxy(*host_and_port(empty.address)) as old:
        await etcd.put(key_of(cluster_name), old.address)
        async with am.connect(target_in(etcd, cluster_name), timeout=None) as engine:
            assert not await engine.exists(held)
            old.answers.hold()
            questions = [asyncio.ensure_future(outcome(engine.exists(held))) for _ in range(10)]
            bulk = asyncio.ensure_future(engine.batch_exists([held] * 5000))
            await old.answers.wait_held(100)
            await etcd.put(key_of(cluster_name), cluster.address)
            assert await outcomes(questions) == [True] * 10
            assert (await bulk).all()
            old.answers.release()
            assert await outcomes(engine.exists(held) for _ in range(10)) == [True] * 10
            await old.wait_until(lambda: old.open == 0)
            assert (engine.stats().master, engine.stats().errors) == (cluster.address, 0)


async def test_a_deposed_leader_that_is_being_connected_to_is_not_asked(
    etcd: EtcdServer, cluster: SharedCluster, cluster_name: str
) -> None:
    (held,) = new_keys(1)
    await cluster.put(held)
    async with LocalCluster(store=False) as empty, FaultProxy(*host_and_port(empty.address)) as old:
        await etcd.put(key_of(cluster_name), old.address)
        async with am.connect(target_in(etcd, cluster_name), timeout=None) as engine:
            old.answers.hold()
            await old.cut()
            question = asyncio.ensure_future(engine.exists(held))
            await old.answers.wait_held()  # the answer to its handshake
            await etcd.put(key_of(cluster_name), cluster.address)
            with anyio.fail_after(HANG):
                assert await question
            old.answers.release()
            await old.wait_until(lambda: old.open == 0)
            assert await engine.exists(held)


async def test_connecting_follows_a_leader_that_changes_meanwhile(
    etcd: EtcdServer, cluster: SharedCluster, cluster_name: str
) -> None:
    async with FaultProxy(*host_and_port(cluster.address)) as old:
        old.answers.hold()
        await etcd.put(key_of(cluster_name), old.address)
        connecting = asyncio.ensure_future(opened(target_in(etcd, cluster_name)))
        await old.answers.wait_held()
        await etcd.put(key_of(cluster_name), cluster.address)
        engine = await connecting
        assert engine.stats().master == cluster.address
        await engine.aclose()


async def test_while_no_leader_is_named_the_last_one_is_asked(
    etcd: EtcdServer, cluster: SharedCluster, cluster_name: str
) -> None:
    (held,) = new_keys(1)
    await cluster.put(held)
    await etcd.put(key_of(cluster_name), cluster.address)
    async with FaultProxy(*etcd.address) as proxy:
        async with am.connect(f"etcd://{proxy.address}/{cluster_name}") as engine:
            passed = proxy.answers.forwarded
            await etcd.delete(key_of(cluster_name))
            await proxy.wait_until(lambda: proxy.answers.forwarded > passed)
            for _ in range(100):
                assert await engine.exists(held)
            assert engine.stats().connections_lost == 0
        await proxy.wait_until(lambda: proxy.open == 0)


async def test_closing_leaves_no_task(etcd: EtcdServer, cluster: SharedCluster, cluster_name: str) -> None:
    await etcd.put(key_of(cluster_name), cluster.address)
    before = asyncio.all_tasks()
    engine = await am.connect(target_in(etcd, cluster_name))
    assert not await engine.exists("a")
    assert asyncio.all_tasks() > before
    await engine.aclose()
    assert asyncio.all_tasks() == before


async def test_closing_does_not_wait_for_an_etcd_that_hangs(own_etcd: EtcdServer, cluster: SharedCluster) -> None:
    await own_etcd.put(key_of("c"), cluster.address)
    async with am.connect(target_in(own_etcd, "c")) as engine:
        own_etcd.stop()
        assert not await engine.exists("a")
    with pytest.raises(ConnectError, match=r"not ready within 0\.2 s"):
        await am.connect(target_in(own_etcd, "c"), timeout=0.2)
    own_etcd.go_on()
    async with am.connect(target_in(own_etcd, "c")) as engine:
        assert not await engine.exists("a")
