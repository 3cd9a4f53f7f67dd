"""The right answers in few calls, on a real master."""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest

import aiomooncake as am
from aiomooncake.errors import OverloadedError, RequestTimeout, StoreError

from .support import FakeMaster, counted, new_keys, outcome, outcomes, through_proxy, until, with_fake_master

if TYPE_CHECKING:
    from ..conftest import SharedCluster

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_sockets")]


def windows(length: int, hits: int) -> list[int]:
    """The sizes of the windows that a prefix of `hits` in `length` keys takes."""
    sizes, start, size = [], 0, 32
    while start < length:
        sizes.append(min(size, length - start))
        start, size = start + size, size * 2
        if hits < start:
            break
    return sizes


async def test_a_thousand_tasks_are_answered_in_at_most_four_calls(cluster: SharedCluster) -> None:
    keys = new_keys(1000)
    await cluster.put(keys[::2])
    async with am.connect(cluster.address) as engine:
        for _ in range(3):
            calls, _ = await counted(cluster)
            answers = await outcomes(engine.exists(key) for key in keys)
            assert answers == [True, False] * 500
            assert (await counted(cluster))[0] - calls <= 4
        assert engine.stats().questions == engine.stats().keys_asked == 3000


async def test_a_thousand_tasks_of_64_keys_are_answered_in_few_calls(cluster: SharedCluster) -> None:
    keys = new_keys(64_000)
    held = random.Random(1).sample(range(64_000), 4_000)
    await cluster.put([keys[number] for number in held])
    expected = np.zeros(64_000, np.bool_)
    expected[held] = True
    async with am.connect(cluster.address, timeout=20) as engine:
        calls, asked = await counted(cluster)
        answers = await outcomes(engine.batch_exists(keys[at : at + 64]) for at in range(0, 64_000, 64))
        now, asked_now = await counted(cluster)
    assert np.array_equal(np.concatenate(answers), expected)  # type: ignore[arg-type]
    assert now - calls <= math.ceil(64_000 / am.EngineConfig().max_batch_keys) + 3
    assert asked_now - asked == 64_000


async def test_a_batch_is_answered_in_key_order_with_its_duplicates(cluster: SharedCluster) -> None:
    hit, miss = new_keys(2)
    await cluster.put(hit)
    async with am.connect(cluster.address) as engine:
        answers = await engine.batch_exists([miss, hit, hit, miss, hit])
        assert answers.dtype == np.bool_
        assert answers.tolist() == [False, True, True, False, True]
        assert not answers.flags.writeable
        assert (await engine.exists(hit), await engine.exists(miss)) == (True, False)


@pytest.mark.parametrize("hits", [0, 1, 31, 32, 33, 95, 96, 97, 223, 224, 300])
async def test_a_prefix_is_asked_in_windows_that_end_with_the_first_gap(cluster: SharedCluster, hits: int) -> None:
    keys = new_keys(300)
    await cluster.put([*keys[:hits], *keys[hits + 1 :]])
    async with am.connect(cluster.address) as engine:
        calls, asked = await counted(cluster)
        assert await engine.prefix_length(keys) == hits
        now, asked_now = await counted(cluster)
        sizes = windows(300, hits)
        assert (now - calls, asked_now - asked) == (len(sizes), sum(sizes))
        assert (engine.stats().questions, engine.stats().keys_asked) == (len(sizes), sum(sizes))


async def test_many_prefixes_at_once_are_each_their_own(cluster: SharedCluster) -> None:
    keys = new_keys(200)
    chosen = random.Random(2)
    lists = [[*keys[: chosen.randrange(200)], f"{keys[0]}-missing", *keys[:50]] for _ in range(200)]
    await cluster.put(keys)
    async with am.connect(cluster.address) as engine:
        assert await outcomes(engine.prefix_length(each) for each in lists) == [len(each) - 51 for each in lists]


async def test_the_deadline_of_a_prefix_spans_its_windows(cluster: SharedCluster) -> None:
    keys = new_keys(32 * 127)
    await cluster.put(keys)
    async with through_proxy(cluster.address) as (proxy, engine):
        proxy.answers.delay = 0.1  # seven windows, each within the deadline
        with pytest.raises(RequestTimeout) as caught:
            await engine.prefix_length(keys, timeout=0.25)
        assert caught.value.phase == "awaiting reply"
        assert 2 <= engine.stats().calls <= 3
        assert engine.stats().timeouts == 1
        proxy.answers.delay = 0
        assert await engine.prefix_length(keys, timeout=20) == len(keys)


async def test_an_error_behind_the_prefix_does_not_matter() -> None:
    master = FakeMaster({b"a", b"b", b"d"})
    master.codes = {b"x": -600}
    async with with_fake_master(master) as (_, _, engine):
        assert await engine.prefix_length(["a", "b", "c", "x", "d"]) == 2
        assert engine.stats().errors == 0
        with pytest.raises(StoreError, match="-600") as caught:
            await engine.prefix_length(["a", "x", "c"])
        assert (caught.value.code, caught.value.key) == (-600, "x")
        assert engine.stats().errors == 1


async def test_an_error_for_a_key_is_neither_hit_nor_miss_and_counted_once() -> None:
    master = FakeMaster({b"a"})
    master.codes = {b"x": -600, b"y": -12345}
    async with with_fake_master(master) as (_, _, engine):
        found = await outcomes([engine.exists("a"), engine.exists("x"), engine.exists("b"), engine.exists("y")])
        assert (found[0], found[2]) == (True, False)
        assert (found[1].code, found[3].code) == (-600, -12345)  # type: ignore[union-attr]
        assert engine.stats().errors == 2
        with pytest.raises(StoreError) as caught:
            await engine.batch_exists(["a", "y", "b", "x"])
        assert (caught.value.code, caught.value.key, caught.value.count) == (-12345, "y", 2)
        assert engine.stats().errors == 3
        assert (await engine.batch_exists(["a", "b"])).tolist() == [True, False]


async def test_a_put_that_completed_is_seen_while_a_call_for_its_key_is_out(cluster: SharedCluster) -> None:
    lone, *keys = new_keys(40)
    async with through_proxy(cluster.address) as (proxy, engine):
        proxy.answers.hold()
        before = [asyncio.ensure_future(outcome(question)) for question in (engine.exists(lone), engine.exists(lone))]
        await proxy.answers.wait_held()
        await cluster.put([lone, *keys])
        after = [
            asyncio.ensure_future(outcome(question))
            for question in (engine.exists(lone), engine.exists(lone), engine.exists(keys[0]))
        ]
        batch = asyncio.ensure_future(engine.batch_exists([lone, *keys]))
        prefix = asyncio.ensure_future(engine.prefix_length([lone, *keys]))
        await asyncio.sleep(0)
        proxy.answers.release()
        # The first two left before the put; whichever was answered first, none of the others may have joined it.
        assert await asyncio.gather(*before) in ([False, False], [False, True])
        assert await asyncio.gather(*after) == [True, True, True]
        assert (await batch).all()
        assert await prefix == 40


async def test_a_put_between_two_questions_is_always_seen(cluster: SharedCluster) -> None:
    keys = new_keys(30)

    async def ask_all_the_time() -> None:
        while not done:
            await outcomes(engine.exists(key) for key in keys)

    done = False
    async with am.connect(cluster.address) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(ask_all_the_time)
        for key in keys:
            assert await engine.exists(key) is False
            await cluster.put(key)
            assert await engine.exists(key) is True
        await cluster.remove(keys)
        assert not (await engine.batch_exists(keys)).any()
        done = True


@pytest.mark.parametrize(
    "options",
    [
        {"connections": 1, "max_in_flight": 1, "max_batch_keys": 1},
        {"connections": 1, "max_in_flight": 3, "max_batch_keys": 7, "dedup": False},
        {"connections": 4, "max_in_flight": 8, "max_batch_keys": 100, "linger": 0.002},
        {"connections": 2, "max_pending_keys": 5, "max_batch_keys": 50},
        {"connections": 3, "max_in_flight": 1, "max_batch_keys": 1 << 20, "timeout": None},
    ],
    ids=str,
)
async def test_answers_are_right_with_every_configuration(cluster: SharedCluster, options: dict[str, Any]) -> None:
    keys = new_keys(400)
    held = set(keys[:250])
    await cluster.put(keys[:250])
    chosen = random.Random(str(options))
    async with am.connect(cluster.address, **{"timeout": 20, **options}) as engine:

        async def caller() -> None:
            for _ in range(5):
                some = chosen.choices(keys, k=chosen.choice([1, 2, 30, 300]))
                assert await engine.exists(some[0]) == (some[0] in held)
                assert (await engine.batch_exists(some)).tolist() == [key in held for key in some]
                start = chosen.randrange(400)
                assert await engine.prefix_length(keys[start:]) == max(0, 250 - start)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(caller)
        stats = engine.stats()
        assert (stats.pending_keys, stats.calls_in_flight, stats.waiting_outside, stats.errors) == (0, 0, 0, 0)


async def test_what_finds_no_place_is_refused_and_the_rest_is_answered(cluster: SharedCluster) -> None:
    keys = new_keys(500)
    await cluster.put(keys)
    async with am.connect(cluster.address, overload="raise", max_pending_keys=100, max_batch_keys=10) as engine:
        found = await outcomes(engine.exists(key) for key in keys)
        refused = [each for each in found if isinstance(each, OverloadedError)]
        assert len(refused) >= 300
        assert [each for each in found if not isinstance(each, OverloadedError)] == [True] * (500 - len(refused))
        assert len(set(map(id, refused))) == len(refused) == engine.stats().refused
        assert "max_pending_keys=100" in str(refused[0])
        assert await engine.exists(keys[0])


async def test_a_short_question_is_not_behind_a_huge_one(cluster: SharedCluster) -> None:
    hit, *keys = new_keys(100_001)
    await cluster.put(hit)
    async with am.connect(cluster.address, timeout=20) as engine:
        huge = asyncio.ensure_future(engine.batch_exists(keys))
        for _ in range(10):
            assert await engine.exists(hit)
            assert not huge.done()
        assert not (await huge).any()


async def test_two_engines_on_one_loop_share_nothing(cluster: SharedCluster) -> None:
    (key,) = new_keys(1)
    await cluster.put(key)
    async with am.connect(cluster.address) as one:
        async with am.connect(cluster.address) as other:
            assert await other.exists(key)
        assert await one.exists(key)
        assert (one.stats().calls, other.stats().calls) == (1, 1)


async def test_the_stats_say_who_answers(cluster: SharedCluster) -> None:
    async with am.connect(cluster.address, connections=3) as engine:
        await until(lambda: engine.stats().connections_open == 3)
        stats = engine.stats()
        assert (stats.master, stats.master_version, stats.master_takes_tenant) == (cluster.address, "2.0.0", True)
        assert stats.connections_lost == 0
        assert cluster.address in repr(engine)
        assert "open" in repr(engine)
    assert engine.stats().connections_open == 0
    assert engine.stats().connections_lost == 0
    assert "closed" in repr(engine)
