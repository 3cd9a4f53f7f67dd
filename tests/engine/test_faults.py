"""A network that fails and a master that is killed or hangs: an answer or a clear error for everybody, and recovery."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiomooncake as am
from aiomooncake.errors import (
    AioMooncakeError,
    ConnectError,
    ConnectionLostError,
    RemoteProtocolError,
    RequestTimeout,
)
from aiomooncake.local import LocalCluster
from aiomooncake.testing import ScriptedPeer

from .support import (
    HANG,
    FakeMaster,
    Request,
    answer_soon,
    freeze,
    new_keys,
    outcome,
    outcomes,
    plain,
    through_proxy,
    until,
    with_fake_master,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from ..conftest import SharedCluster

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_sockets")]

GONE = (ConnectError, ConnectionLostError)


@pytest.fixture
async def bare_cluster(anyio_backend: object) -> AsyncIterator[LocalCluster]:
    """A master that holds nothing, for one test."""
    async with LocalCluster(store=False) as cluster:
        yield cluster


# ---- the network --------------------------------------------------------------------------------------------------


async def test_a_cut_at_every_byte_of_an_answer(cluster: SharedCluster) -> None:
    hit, miss, *more = new_keys(12)
    await cluster.put([hit, *more])
    async with through_proxy(cluster.address, connections=1) as (proxy, engine):
        before = proxy.answers.forwarded
        assert (await engine.batch_exists([hit, miss, *more])).tolist() == [True, False] + [True] * 10
        size = proxy.answers.forwarded - before
        for count in range(size + 1):
            proxy.answers.cut_after(count)
            asked: list[Awaitable[Any]] = [
                engine.batch_exists([hit, miss, *more]),
                engine.exists(miss),
                engine.exists(hit),
            ]
            for ended, expected in zip(await outcomes(asked), ([True, False] + [True] * 10, False, True), strict=True):
                assert isinstance(ended, GONE) or plain(ended) == expected
            assert await answer_soon(engine, hit)
            assert not await answer_soon(engine, miss)
        stats = engine.stats()
        assert stats.connections_lost >= size
        assert (stats.pending_keys, stats.calls_in_flight, stats.connections_open) == (0, 0, 1)


async def test_a_cut_in_the_middle_of_a_request(cluster: SharedCluster) -> None:
    keys = new_keys(3000)
    await cluster.put(keys[-1])
    async with through_proxy(cluster.address) as (proxy, engine):
        for count in (1, 19, 20, 21, 30, 5_000, 60_000):
            proxy.requests.cut_after(count)
            (ended,) = await outcomes([engine.batch_exists(keys)])
            assert isinstance(ended, GONE) or plain(ended) == [False] * 2999 + [True]
            assert await answer_soon(engine, keys[-1])


@pytest.mark.parametrize("how", ["cut", "hang_up"])
async def test_a_connection_that_ends_while_idle_is_made_again(cluster: SharedCluster, how: str) -> None:
    (hit,) = new_keys(1)
    await cluster.put(hit)
    async with through_proxy(cluster.address) as (proxy, engine):
        for turn in range(1, 4):
            await getattr(proxy, how)()
            await until(lambda turn=turn: engine.stats().connections_lost == 2 * turn)  # type: ignore[misc]
            assert engine.stats().connections_open == 0
            assert await engine.exists(hit)
            await until(lambda: engine.stats().connections_open == 2)
        assert engine.stats().errors == 0


async def test_a_connection_that_ends_while_a_question_is_written_is_no_hang(cluster: SharedCluster) -> None:
    (hit,) = new_keys(1)
    await cluster.put(hit)
    async with through_proxy(cluster.address) as (proxy, engine):
        for _ in range(20):
            ended = [asyncio.ensure_future(outcome(engine.exists(hit))) for _ in range(5)]
            await proxy.cut()
            ended += [asyncio.ensure_future(outcome(engine.exists(hit))) for _ in range(5)]
            await proxy.hang_up()
            for answer in await asyncio.gather(*ended):
                assert answer is True or isinstance(answer, GONE)
        assert await answer_soon(engine, hit)


async def test_every_byte_alone(cluster: SharedCluster) -> None:
    keys = new_keys(20)
    await cluster.put(keys[::3])
    async with through_proxy(cluster.address, timeout=20) as (proxy, engine):
        proxy.answers.chunk_size = proxy.requests.chunk_size = 1
        found = await outcomes(engine.exists(key) for key in keys)
        assert found == [number % 3 == 0 for number in range(20)]
        assert await engine.prefix_length([keys[0], *keys[::3], keys[1]]) == 8
        await proxy.cut()  # and the handshake
        assert await answer_soon(engine, keys[0])


async def test_a_slow_network_changes_no_answer(cluster: SharedCluster) -> None:
    keys = new_keys(100)
    await cluster.put(keys[:60])
    async with through_proxy(cluster.address) as (proxy, engine):
        proxy.answers.delay = proxy.requests.delay = 0.02
        found = await outcomes(engine.exists(key) for key in keys)
        assert found == [True] * 60 + [False] * 40
        assert await engine.prefix_length(keys) == 60


async def test_an_answer_that_comes_too_late_upsets_nothing(cluster: SharedCluster) -> None:
    hit, miss = new_keys(2)
    await cluster.put(hit)
    async with through_proxy(cluster.address) as (proxy, engine):
        for _ in range(3):
            proxy.answers.hold()
            late = [outcome(engine.exists(key, timeout=0.02)) for key in (hit, miss)]
            gone = asyncio.ensure_future(engine.batch_exists([miss, hit]))
            assert {type(ended) for ended in await asyncio.gather(*late)} == {RequestTimeout}
            gone.cancel()
            waiting = asyncio.ensure_future(engine.batch_exists([hit, miss]))
            await asyncio.sleep(0)
            proxy.answers.release()
            assert (await waiting).tolist() == [True, False]
            assert (await engine.exists(hit), await engine.exists(miss)) == (True, False)
        stats = engine.stats()
        assert (stats.timeouts, stats.cancelled, stats.errors, stats.connections_lost) == (6, 3, 0, 0)


async def test_garbage_ends_the_connection_and_says_what_was_seen(cluster: SharedCluster) -> None:
    hit, miss = new_keys(2)
    await cluster.put(hit)
    async with through_proxy(cluster.address) as (proxy, engine):
        for garbage in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x16\x03\x01", b"\0", b"\x15\x01", bytes(4096)):
            proxy.answers.transform = lambda data, garbage=garbage: garbage
            (ended,) = await outcomes([engine.exists(hit)])
            assert isinstance(ended, (RemoteProtocolError, *GONE))
            assert "not a coro_rpc answer" in str(ended)
            assert proxy.address in str(ended)
            proxy.answers.transform = None
            assert await answer_soon(engine, hit)
            assert not await engine.exists(miss)


async def test_what_nobody_asked_for_ends_a_connection_and_no_question(cluster: SharedCluster) -> None:
    (hit,) = new_keys(1)
    await cluster.put(hit)
    async with through_proxy(cluster.address) as (proxy, engine):
        for lost, unasked in enumerate((b"x", b"\x15\0\0\0" + bytes(12)), start=1):
            proxy.answers.inject(unasked)
            await until(lambda lost=lost: engine.stats().connections_lost == 2 * lost)  # type: ignore[misc]
            assert await engine.exists(hit)
            await until(lambda: engine.stats().connections_open == 2)


async def test_a_port_that_refuses_and_then_accepts_again(cluster: SharedCluster) -> None:
    hit, *keys = new_keys(101)
    await cluster.put(hit)
    async with through_proxy(cluster.address) as (proxy, engine):
        for _ in range(3):
            proxy.refuse()
            await proxy.cut()
            for ended in await outcomes(engine.exists(key) for key in keys):
                assert isinstance(ended, GONE)
            await until(lambda: engine.stats().connections_open == 0)
            with pytest.raises(ConnectError, match=proxy.address):
                await engine.prefix_length([hit])
            proxy.resume()
            assert await answer_soon(engine, hit)
        assert engine.stats().timeouts == 0


async def test_each_waiter_has_an_error_of_its_own(cluster: SharedCluster) -> None:
    async with through_proxy(cluster.address) as (proxy, engine):
        proxy.refuse()
        await proxy.cut()
        errors = await outcomes(engine.exists(key) for key in new_keys(50))
        assert all(isinstance(error, GONE) for error in errors)
        assert len(set(map(id, errors))) == 50


async def test_a_master_away_is_asked_few_times_by_ten_thousand_questions() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if serving:
            await master(reader, writer)

    master, serving = FakeMaster(), True
    async with ScriptedPeer(hang_up) as peer, am.connect(peer.address, timeout=20) as engine:
        serving = False
        for writer in master.writers:
            writer.close()
        await until(lambda: engine.stats().connections_open == 0)
        for _ in range(5_000):
            assert isinstance(await outcome(engine.exists("a")), GONE)
        for ended in await outcomes(engine.exists("a") for _ in range(5_000)):
            assert isinstance(ended, GONE)
        # Two served; attempts are bounded by time, at first up to 100 a second and soon about 10.
        assert len(peer.received) < 2 + 150
        serving = True
        assert await answer_soon(engine, "a")


async def test_a_stuck_connection_holds_up_nobody_else_and_is_replaced() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (stuck if len(peer.received) == 1 else good)(reader, writer)

    async def never_answer(request: Request, writer: asyncio.StreamWriter) -> None:
        await anyio.sleep_forever()

    stuck, good = FakeMaster(), FakeMaster()
    stuck.misbehave = never_answer
    async with ScriptedPeer(script) as peer, am.connect(peer.address, timeout=20) as engine:
        first = asyncio.ensure_future(outcome(engine.exists("first")))
        await until(lambda: len(stuck.questions) == 1)
        for _ in range(10):
            assert await engine.exists("other")
        assert not first.done()
        with anyio.fail_after(HANG):
            ended = await first
        assert ended is True or isinstance(ended, ConnectionLostError)
        assert len(peer.received) == 3
        assert (engine.stats().connections_lost, engine.stats().connections_open) == (1, 2)
        for answers in await outcomes(engine.batch_exists([f"{number}"] * 3000) for number in range(5)):
            assert plain(answers) == [True] * 3000
        assert len(stuck.questions) == 1


async def test_a_slow_answer_on_a_connection_is_not_taken_for_a_stuck_one() -> None:
    async def answer_slowly(request: Request, writer: asyncio.StreamWriter) -> None:
        for byte in master.answer(request):
            writer.write(bytes([byte]))
            await anyio.sleep(0.04)

    master = FakeMaster()
    master.misbehave = answer_slowly
    async with with_fake_master(master, timeout=20, connections=1) as (_, peer, engine):
        assert await engine.exists("a")
        assert (engine.stats().connections_lost, len(peer.received)) == (0, 1)


async def test_a_bulk_question_uses_what_stands_when_its_own_connection_cannot_be_made() -> None:
    async def two_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(peer.received) <= 2:
            await master(reader, writer)

    master = FakeMaster()
    async with ScriptedPeer(two_only) as peer, am.connect(peer.address, timeout=None) as engine:
        assert len(peer.received) == 2
        master.writers[0].close()
        await until(lambda: engine.stats().connections_open == 1)
        with anyio.fail_after(HANG):
            for _ in range(3):
                assert (await engine.batch_exists(["a"] * 1000)).all()


async def test_many_large_batches_wait_here_while_the_peer_reads_nothing(cluster: SharedCluster) -> None:
    keys = [f"{key:0>200}" for key in new_keys(2048)]
    await cluster.put(keys[:10])
    options: dict[str, Any] = {"connections": 1, "max_in_flight": 1000, "timeout": 60, "dedup": False}
    async with through_proxy(cluster.address, **options) as (proxy, engine):
        proxy.requests.hold()
        asked = [asyncio.ensure_future(engine.batch_exists(keys)) for _ in range(120)]  # 50 MB
        await proxy.requests.wait_held(1 << 20)
        for _ in range(20):
            await asyncio.sleep(0.001)
        # The kernel holds some; what it does not take stays in the queue, as keys, and not as frames of half a MB.
        stats = engine.stats()
        assert 0 < stats.calls_in_flight < 60
        assert stats.pending_keys > 50 * 2048
        proxy.requests.release()
        for answers in await asyncio.gather(*asked):
            assert answers[:10].all()
            assert not answers[10:].any()
        assert engine.stats().connections_lost == 0


async def test_faults_of_every_kind_in_turn_never_give_a_wrong_answer(cluster: SharedCluster) -> None:
    keys = new_keys(200)
    held = set(keys[::2])
    await cluster.put(keys[::2])
    chosen = random.Random(7)
    answered = 0

    async def caller() -> None:
        nonlocal answered
        while not ended.is_set():
            some = chosen.choices(keys, k=chosen.choice([1, 3, 300]))
            for answer, expected in (
                (await outcome(engine.exists(some[0], timeout=0.3)), some[0] in held),
                (await outcome(engine.batch_exists(some, timeout=0.3)), [key in held for key in some]),
            ):
                if isinstance(answer, AioMooncakeError):
                    assert isinstance(answer, (*GONE, RequestTimeout, RemoteProtocolError))
                else:
                    assert plain(answer) == expected
                    answered += 1
            await asyncio.sleep(0)

    async with through_proxy(cluster.address) as (proxy, engine):
        ended = anyio.Event()
        async with anyio.create_task_group() as callers:
            for _ in range(20):
                callers.start_soon(caller)
            for _ in range(25):
                fault = chosen.randrange(7)
                if fault == 0:
                    proxy.answers.cut_after(chosen.randrange(500))
                elif fault == 1:
                    proxy.requests.cut_after(chosen.randrange(50_000))
                elif fault == 2:
                    await proxy.hang_up()
                elif fault == 3:
                    proxy.answers.chunk_size = chosen.choice([None, 1, 7])
                elif fault == 4:
                    proxy.answers.hold()
                elif fault == 5:
                    proxy.answers.inject(chosen.randbytes(chosen.randrange(1, 40)))
                else:
                    proxy.refuse()
                    await proxy.cut()
                goal = answered + 5 + chosen.randrange(15)
                with anyio.move_on_after(0.02):
                    while answered < goal:
                        await anyio.sleep(0.001)
                proxy.answers.release()
                proxy.resume()
                with anyio.fail_after(HANG):
                    while answered < goal:
                        await anyio.sleep(0.001)
            ended.set()
        proxy.answers.chunk_size = None
        for key in keys[:20]:
            assert await answer_soon(engine, key) == (key in held)


# ---- the master ---------------------------------------------------------------------------------------------------


async def test_a_master_killed_under_load_leaves_nobody_waiting_and_is_found_again(own_cluster: LocalCluster) -> None:
    keys = new_keys(300)
    await own_cluster.put(keys)
    ended: list[object] = []

    async def caller(number: int) -> None:
        while not restarted.is_set():
            ended.append(await outcome(engine.exists(keys[number], timeout=20)))
            ended.append(await outcome(engine.prefix_length(keys, timeout=20)))
            await asyncio.sleep(0)

    async with am.connect(own_cluster.address) as engine:
        restarted = anyio.Event()
        async with anyio.create_task_group() as callers:
            for number in range(300):
                callers.start_soon(caller, number)
            await until(lambda: len(ended) > 1000)
            assert all(answer is True or answer == 300 for answer in ended)
            await own_cluster.kill_master()
            await until(lambda: isinstance(ended[-1], ConnectError) and "refused" in str(ended[-1]))
            gone = len(ended)
            await until(lambda: len(ended) > gone + 1000)
            await own_cluster.restart_master()
            await until(lambda: ended[-1] is False or ended[-1] == 0)  # it knows no key any more
            restarted.set()
        for answer in ended:
            assert isinstance(answer, (bool, int, *GONE)), repr(answer)
        await own_cluster.put(keys)
        assert (await engine.batch_exists(keys)).all()
        stats = engine.stats()
        assert (stats.pending_keys, stats.calls_in_flight, stats.timeouts) == (0, 0, 0)


async def test_waiters_on_a_master_that_is_killed_end_without_a_deadline(bare_cluster: LocalCluster) -> None:
    async with am.connect(bare_cluster.address, timeout=None) as engine:
        await freeze(bare_cluster)
        waiting = [asyncio.ensure_future(outcome(engine.exists(key))) for key in new_keys(100)]
        waiting.append(asyncio.ensure_future(outcome(engine.batch_exists(new_keys(10_000)))))  # type: ignore[arg-type]
        await until(lambda: engine.stats().calls_in_flight >= 3)
        await bare_cluster.kill_master()
        with anyio.fail_after(HANG):
            for ended in await asyncio.gather(*waiting):
                assert isinstance(ended, GONE)


async def test_what_waits_while_silent_connections_are_replaced_ends_when_the_master_is_killed(
    bare_cluster: LocalCluster,
) -> None:
    async with through_proxy(bare_cluster.address, timeout=None, connections=1) as (proxy, engine):
        await freeze(bare_cluster)
        waiting = [asyncio.ensure_future(outcome(engine.exists(key))) for key in new_keys(3)]
        await proxy.wait_until(lambda: proxy.accepted == 2)  # the replacement, which gets no answer either
        waiting += [asyncio.ensure_future(outcome(engine.exists(key))) for key in new_keys(3)]
        await asyncio.sleep(0)
        proxy.refuse()
        await proxy.cut()
        waiting += [asyncio.ensure_future(outcome(engine.exists(key))) for key in new_keys(3)]
        with anyio.fail_after(HANG):
            for ended in await asyncio.gather(*waiting):
                assert isinstance(ended, GONE)


async def test_a_stopped_master_is_a_timeout_for_each_and_works_on(own_cluster: LocalCluster) -> None:
    hit, *keys = new_keys(200)
    await own_cluster.put(hit)
    loop = asyncio.get_running_loop()

    async def ask(key: str) -> None:
        began = loop.time()
        with pytest.raises(RequestTimeout) as caught:
            await engine.exists(key, timeout=0.5)
        assert loop.time() - began >= 0.499  # uvloop's clock counts milliseconds
        assert caught.value.phase in ("awaiting reply", "queued")
        phases.append(caught.value.phase)

    phases: list[str] = []
    async with am.connect(own_cluster.address) as engine:
        await freeze(own_cluster)
        async with anyio.create_task_group() as callers:
            for key in keys:
                callers.start_soon(ask, key)
        assert "awaiting reply" in phases
        assert engine.stats().timeouts == 199
        own_cluster.continue_master()
        assert await answer_soon(engine, hit)
        assert not await answer_soon(engine, keys[0])
        assert engine.stats().pending_keys == 0


async def test_a_loop_is_never_held_up_by_a_stopped_master(bare_cluster: LocalCluster) -> None:
    keys = new_keys(2000)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.sleep(0.001)

    async with am.connect(bare_cluster.address) as engine, anyio.create_task_group() as tasks:
        await freeze(bare_cluster)
        tasks.start_soon(count_turns)
        ended = await outcomes(engine.exists(key, timeout=0.5) for key in keys)
        assert {type(error) for error in ended} == {RequestTimeout}
        assert turns > 5
        tasks.cancel_scope.cancel()
        bare_cluster.continue_master()


async def test_a_connection_to_a_hung_master_is_no_connection(bare_cluster: LocalCluster) -> None:
    await freeze(bare_cluster)
    with pytest.raises(ConnectError, match=rf"{bare_cluster.address} .*within 0\.2 s.*hung"):
        await am.connect(bare_cluster.address, timeout=0.2)
    bare_cluster.continue_master()
    async with am.connect(bare_cluster.address) as engine:
        assert not await engine.exists("a")


async def test_a_port_where_nobody_listens_is_refused_at_once() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(ConnectError, match=f"{address} refused the connection") as caught:
            await am.connect(address, timeout=None)
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)
        with pytest.raises(ConnectError, match="is mooncake_master running there"):
            async with am.connect(address):
                pass


async def test_a_name_that_does_not_resolve_is_named() -> None:
    with pytest.raises(ConnectError, match=r"no-such-host\.invalid:50051"):
        await am.connect("no-such-host.invalid:50051", timeout=20)
