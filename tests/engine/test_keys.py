"""Every kind of key, asked in the company of a thousand callers who must not notice."""

from __future__ import annotations

import asyncio
import random
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest

import aiomooncake as am
from aiomooncake.errors import InvalidKeyError, RequestTimeout

from .support import HANG, new_keys, outcome, outcomes, plain, through_proxy, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator

    from ..conftest import SharedCluster

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_sockets")]

MARK = uuid.uuid4().hex
KEYS = [f"{MARK}-{number}" for number in range(1000)]
EXPECTED = [number % 3 != 1 for number in range(1000)]
UNUSUAL: dict[str, str | bytes] = {
    "emoji": f"{MARK}-\N{GRINNING FACE}é",
    "NUL": f"{MARK}\0-nul",
    "newline": f"{MARK}\r\n",
    "256 characters": f"{MARK:x<256}",
    "70,000 characters": f"{MARK:x<70000}",
    "a megabyte": f"{MARK:y<1048576}",
    "bytes": f"{MARK}-bytes".encode(),
    "bytes that are no UTF-8": f"{MARK}-".encode() + bytes(range(256)),
}
WRONG: dict[str, Any] = {
    "lone surrogate": "\ud800",
    "surrogate at the end": "x" * 1000 + "\udfff",
    "int": 7,
    "None": None,
    "float": 1.5,
    "list": ["a"],
    "tuple": ("a",),
    "dict": {},
    "bytearray": bytearray(b"a"),
    "memoryview": memoryview(b"a"),
    "object": object(),
}


@pytest.fixture(scope="module", autouse=True)
def held(cluster: SharedCluster) -> None:
    async def put() -> None:
        await cluster.put([key for key, there in zip(KEYS, EXPECTED, strict=True) if there])
        await cluster.put(list(UNUSUAL.values()))

    asyncio.run(put())


@asynccontextmanager
async def company(engine: am.Engine) -> AsyncIterator[None]:
    """A thousand callers, before and after whatever is asked within, all in the same turns of the loop."""
    first = [asyncio.ensure_future(outcome(engine.exists(key))) for key in KEYS[:500]]
    await asyncio.sleep(0)
    yield
    second = [asyncio.ensure_future(outcome(engine.exists(key))) for key in KEYS[500:]]
    with anyio.fail_after(HANG):
        answers = await asyncio.gather(*first, *second)
    assert answers == EXPECTED


@pytest.fixture
async def engine(anyio_backend: object, cluster: SharedCluster) -> AsyncIterator[am.Engine]:
    async with am.connect(cluster.address, timeout=20) as engine:
        yield engine


async def test_unusual_keys_are_keys(engine: am.Engine) -> None:
    asked: dict[str, list[asyncio.Future[Any]]] = {}
    async with company(engine):
        for name, key in UNUSUAL.items():
            longer: str | bytes = key + "-" if isinstance(key, str) else key + b"-"
            questions: list[Awaitable[Any]] = [
                engine.exists(key),
                engine.exists(longer),
                engine.batch_exists([KEYS[0], longer, key, KEYS[1], key]),
                engine.prefix_length([KEYS[0], key, longer]),
            ]
            asked[name] = [asyncio.ensure_future(question) for question in questions]
            await asyncio.sleep(0)
    for name, futures in asked.items():
        answers = [plain(answer) for answer in await asyncio.gather(*futures)]
        assert answers == [True, False, [True, False, True, False, True], 2], name
    for name, key in UNUSUAL.items():  # and alone
        assert await engine.exists(key), name


async def test_wrong_keys_are_their_callers_fault_alone(engine: am.Engine) -> None:
    asked: dict[str, list[asyncio.Future[Any]]] = {}
    async with company(engine):
        for name, wrong in WRONG.items():
            questions: list[Awaitable[Any]] = [
                engine.exists(wrong),
                engine.batch_exists([KEYS[0], wrong, KEYS[1]]),
                engine.batch_exists([*KEYS[:400], wrong]),
                engine.prefix_length([KEYS[0], wrong]),
            ]
            asked[name] = [asyncio.ensure_future(outcome(question)) for question in questions]
            await asyncio.sleep(0)
    seen = set()
    for name, futures in asked.items():
        for error in await asyncio.gather(*futures):
            assert isinstance(error, InvalidKeyError), name
            assert ("UTF-8" if isinstance(WRONG[name], str) else type(WRONG[name]).__name__) in str(error)
            seen.add(id(error))
    assert len(seen) == engine.stats().errors == 4 * len(WRONG)
    for name, wrong in WRONG.items():  # and alone
        assert isinstance(await outcome(engine.exists(wrong)), InvalidKeyError), name
    assert await engine.exists(KEYS[0])
    assert engine.stats().connections_lost == 0


@pytest.mark.parametrize("keys", ["abc", b"abc", None, 7, 1.5, object()], ids=repr)
async def test_what_is_no_list_of_keys_is_named(engine: am.Engine, keys: Any) -> None:
    for ask in (engine.batch_exists, engine.prefix_length):
        with pytest.raises(InvalidKeyError, match=r"keys is .*give a list"):
            await ask(keys)


async def test_no_keys_are_answered_without_asking(engine: am.Engine) -> None:
    async with company(engine):
        nothings: list[Iterable[str]] = [[], (), {}, iter(())]
        for nothing in nothings:
            answers = await engine.batch_exists(nothing)
            assert answers.shape == (0,)
            assert answers.dtype == np.bool_
            assert await engine.prefix_length(nothing) == 0
    assert engine.stats().keys_asked == 1000


async def test_an_empty_key_does_not_exist(engine: am.Engine) -> None:
    async with company(engine):
        assert await engine.exists("") is False
        assert await engine.exists(b"") is False
        assert (await engine.batch_exists(["", KEYS[0], ""])).tolist() == [False, True, False]
        assert await engine.prefix_length([KEYS[0], ""]) == 1


async def test_str_and_bytes_of_the_same_key_are_the_same_key(engine: am.Engine) -> None:
    assert (await engine.batch_exists([KEYS[0], KEYS[0].encode(), KEYS[1].encode()])).tolist() == [True, True, False]
    assert await outcomes([engine.exists(UNUSUAL["bytes"]), engine.exists(f"{MARK}-bytes")]) == [True, True]


async def test_every_kind_of_collection_is_taken(engine: am.Engine) -> None:
    some, expected = KEYS[:100], EXPECTED[:100]
    collections: list[Any] = [
        tuple(some),
        (key for key in some),
        dict.fromkeys(some),
        dict.fromkeys(some).keys(),
        np.array(some),
        np.array(some, object),
        np.array([key.encode() for key in some]),
        map(str.encode, some),
    ]
    for keys in collections:
        assert (await engine.batch_exists(keys)).tolist() == expected
    assert await engine.prefix_length(np.array(some)) == 1
    assert set(some) == {key for key in some if (await engine.batch_exists({key}))[0] == expected[some.index(key)]}


async def test_a_collection_that_fails_raises_its_own_error(engine: am.Engine) -> None:
    def broken() -> Iterator[str]:
        yield KEYS[0]
        raise ZeroDivisionError

    async with company(engine):
        with pytest.raises(ZeroDivisionError):
            await engine.batch_exists(broken())


async def test_a_list_may_be_changed_while_it_is_asked(engine: am.Engine) -> None:
    keys = KEYS[:600]
    async with company(engine):
        asked = asyncio.ensure_future(engine.batch_exists(keys))
        prefix = asyncio.ensure_future(engine.prefix_length(keys))
        await asyncio.sleep(0)
        keys[:] = ["\ud800"]
    assert (await asked).tolist() == EXPECTED[:600]
    assert await prefix == 1


async def test_300_000_keys_are_asked_at_once(engine: am.Engine) -> None:
    keys = new_keys(300_000)
    keys[::100] = KEYS * 3
    async with company(engine):
        asked = asyncio.ensure_future(engine.batch_exists(keys))
    answers = await asked
    assert answers[::100].tolist() == EXPECTED * 3
    assert answers.sum() == sum(EXPECTED) * 3


async def test_keys_of_more_bytes_than_one_call_takes_are_asked_in_several(engine: am.Engine) -> None:
    megabyte = str(UNUSUAL["a megabyte"])
    keys = [megabyte, *(f"{number}{megabyte}" for number in range(79))]
    async with company(engine):
        asked = asyncio.ensure_future(engine.batch_exists(keys))
    assert (await asked).tolist() == [True] + [False] * 79
    assert engine.stats().connections_lost == 0


async def test_callers_that_give_up_change_nobodys_answer(cluster: SharedCluster) -> None:
    chosen = random.Random(3)
    async with through_proxy(cluster.address, timeout=20) as (proxy, engine):
        for hold_answers in (False, True):
            if hold_answers:
                proxy.answers.hold()
            quitters: list[asyncio.Future[Any]] = []

            def join(count: int, quitters: list[asyncio.Future[Any]] = quitters) -> None:
                for _ in range(count):
                    some = chosen.sample(KEYS, chosen.choice([2, 40, 500]))
                    quitters.append(asyncio.ensure_future(engine.exists(some[0])))
                    quitters.append(asyncio.ensure_future(engine.batch_exists(some)))
                    quitters.append(asyncio.ensure_future(engine.prefix_length(some)))

            join(30)
            async with company(engine):
                join(30)
                for quitter in quitters[::2]:
                    quitter.cancel()
                await asyncio.sleep(0)
                for quitter in quitters:
                    quitter.cancel()
                if hold_answers:
                    proxy.answers.release()
            assert all(quitter.cancelled() for quitter in quitters)
        stats = engine.stats()
        assert (stats.pending_keys, stats.connections_lost) == (0, 0)
        await until(lambda: engine.stats().calls_in_flight == 0)  # those that nobody waits for as well


async def test_callers_past_their_deadline_change_nobodys_answer(cluster: SharedCluster) -> None:
    async with through_proxy(cluster.address, timeout=20) as (proxy, engine):
        proxy.answers.hold()
        async with company(engine):
            late = [
                *(outcome(engine.exists(key, timeout=0.01)) for key in KEYS[:100]),
                *(outcome(engine.batch_exists(KEYS[:number], timeout=0)) for number in range(2, 50)),
                outcome(engine.batch_exists(KEYS * 30, timeout=0.02)),
                outcome(engine.prefix_length(KEYS, timeout=0.005)),
            ]
            for ended in await asyncio.gather(*late):
                assert isinstance(ended, RequestTimeout)
                assert ended.phase in ("queued", "awaiting reply")
            proxy.answers.release()
        stats = engine.stats()
        assert (stats.timeouts, stats.errors) == (150, 0)
        assert (stats.pending_keys, stats.connections_lost) == (0, 0)
        await until(lambda: engine.stats().calls_in_flight == 0)  # those that nobody waits for as well
