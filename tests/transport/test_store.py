"""The store transport on a scripted store, and on a real one in a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import aiomooncake as am
from aiomooncake.reply import ERROR, HIT, MISS, Reply
from aiomooncake.transport import store as store_module
from aiomooncake.transport.store import StoreTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiomooncake.errors import AioMooncakeError

    from ..conftest import SharedCluster

pytestmark = pytest.mark.anyio


class ScriptedStore:
    """Holds `present`. Calls for a key in `held` block their thread until `release`."""

    def __init__(self, *present: str) -> None:
        self.present = set(present)
        self.held: set[str] = set()
        self.asked: list[list[Any]] = []
        self.threads: set[str] = set()
        self.answer: Callable[[list[Any]], Any] = self._look_up
        self._released = threading.Event()
        self._blocked = threading.Semaphore(0)

    def batch_is_exist(self, keys: list[Any], /) -> list[int]:
        self.asked.append(keys)
        self.threads.add(threading.current_thread().name)
        if self.held & set(keys):
            self._blocked.release()
            assert self._released.wait(30)
        answer: list[int] = self.answer(keys)
        return answer

    def release(self) -> None:
        self._released.set()

    def wait_until_blocked(self) -> None:
        assert self._blocked.acquire(timeout=30)

    def _look_up(self, keys: list[Any]) -> list[int]:
        return [int(key in self.present) for key in keys]


class HealthyStore(ScriptedStore):
    """One that also says whether it is set up, as stores do from 0.3.8 on."""

    def __init__(self, *present: str) -> None:
        super().__init__(*present)
        self.health = 0

    def health_check(self) -> int:
        return self.health


class Asked:
    """A call whose outcome can be awaited."""

    def __init__(self, *keys: Any) -> None:
        self.keys: Sequence[Any] = keys
        self.outcome: asyncio.Future[Reply | AioMooncakeError] = asyncio.get_running_loop().create_future()

    def answered(self, reply: Reply) -> None:
        self.outcome.set_result(reply)

    def failed(self, error: AioMooncakeError) -> None:
        self.outcome.set_result(error)


async def connected(store: ScriptedStore, workers: int = 1) -> StoreTransport:
    transport = StoreTransport(store, workers=workers)
    transport.bind(on_room=lambda: None, on_unavailable=lambda error: None)
    await transport.connect()
    return transport


def ask(transport: StoreTransport, *keys: Any) -> Asked:
    call, channel = Asked(*keys), transport.channel(bulk=False)
    assert channel is not None
    channel.send(call)
    return call


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("aiomooncake store")]


def threads_end() -> bool:
    """Whether every thread of a transport ends; one that has said so may need a moment more."""
    for thread in threads():
        thread.join(10)
    return not threads()


# ---- on a scripted store ------------------------------------------------------------------------------------------


async def test_an_engine_asks_through_a_store() -> None:
    store = HealthyStore("a", "c")
    async with am.connect(store=store) as engine:
        assert await engine.exists("a")
        assert (await engine.batch_exists(["a", "b", "c", "a"])).tolist() == [True, False, True, True]
        assert await engine.prefix_length(["a", "c", "b"]) == 2
        stats = engine.stats()
        assert (stats.master, stats.connections_open, stats.connections_lost) == (None, 2, 0)
    assert store.asked == [["a"], ["a", "b", "c", "a"], ["a", "c", "b"]]


async def test_the_store_is_asked_on_named_threads_and_never_on_the_loops_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the loop's executor was used")

    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refuse)
    store = ScriptedStore("a")
    store.held = {"held"}
    async with am.connect(store=store, connections=3) as engine:
        held = [asyncio.create_task(engine.exists("held")), asyncio.create_task(engine.exists("held"))]
        for _ in range(2):  # turns: the second of them leaves at the end of the first
            await asyncio.sleep(0)
        assert await engine.exists("a")
        assert sorted(thread.name for thread in threads()) == [f"aiomooncake store {index}" for index in range(3)]
        assert all(thread.daemon for thread in threads())
        store.release()
        await asyncio.gather(*held)
    assert store.threads <= {f"aiomooncake store {index}" for index in range(3)}
    assert threads_end()


async def test_a_thousand_callers_share_few_calls() -> None:
    store = ScriptedStore(*(f"key-{number}" for number in range(0, 1000, 2)))
    async with am.connect(store=store, timeout=30.0) as engine:
        answers = await asyncio.gather(*(engine.exists(f"key-{number}") for number in range(1000)))
    assert answers == [number % 2 == 0 for number in range(1000)]
    assert len(store.asked) <= 4


async def test_codes_other_than_hit_and_miss_are_errors() -> None:
    store = ScriptedStore()
    transport = await connected(store)
    store.answer = lambda keys: [1, 0, -900, 2, -1, 256]
    reply = await ask(transport, *"abcdef").outcome
    assert reply == (bytes((HIT, MISS, ERROR, ERROR, ERROR, ERROR)), {2: -900, 3: 2, 4: -1, 5: 256})
    await transport.aclose()


@pytest.mark.parametrize("answer", [[1], [1, 0, 1], [], None, 5, [1, 1.0]], ids=repr)
async def test_an_answer_that_makes_no_sense_is_an_error_and_the_next_question_is_answered(answer: Any) -> None:
    store = ScriptedStore("a")
    transport = await connected(store)
    store.answer = lambda keys: answer
    assert isinstance(await ask(transport, "a", "b").outcome, am.ConnectError)
    store.answer = lambda keys: [1] * len(keys)
    assert await ask(transport, "a").outcome == (bytes((HIT,)), {})
    await transport.aclose()


async def test_what_a_store_raises_reaches_its_callers_alone() -> None:
    store = ScriptedStore()
    cause = RuntimeError("the store is tired")

    def raise_cause(keys: list[Any]) -> list[int]:
        raise cause

    store.answer = raise_cause
    async with am.connect(store=store) as engine:
        outcomes = await asyncio.gather(*(engine.exists("a") for _ in range(3)), return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, am.ConnectError)
            assert "RuntimeError: the store is tired" in str(outcome)
            assert outcome.__cause__ is cause
        assert len({id(outcome) for outcome in outcomes}) == 3
        store.answer = lambda keys: [1] * len(keys)
        assert await engine.exists("a")


async def test_bad_keys_never_reach_the_store() -> None:
    store = ScriptedStore("good")
    bad: list[Any] = [5, None, "\ud800"]
    async with am.connect(store=store) as engine:
        outcomes = await asyncio.gather(*map(engine.exists, [*bad, "good"]), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [am.InvalidKeyError] * 3 + [bool]
    assert not {5, None, "\ud800"} & {key for keys in store.asked for key in keys}


async def test_a_refused_call_leaves_its_channel_free() -> None:
    transport = await connected(ScriptedStore("a"))
    channel = transport.channel(bulk=False)
    assert channel is not None
    with pytest.raises(am.InvalidKeyError):
        channel.send(Asked("a", 5))
    assert transport.channel(bulk=False) is channel
    assert await ask(transport, "a").outcome == (bytes((HIT,)), {})
    await transport.aclose()


async def test_one_worker_of_several_is_kept_free_of_bulk_calls() -> None:
    store = ScriptedStore()
    store.held = {"held"}
    transport = await connected(store, workers=3)
    calls = [Asked("held") for _ in range(3)]
    for call in calls[:2]:
        channel = transport.channel(bulk=True)
        assert channel is not None
        channel.send(call)
    assert transport.channel(bulk=True) is None
    channel = transport.channel(bulk=False)
    assert channel is not None
    channel.send(calls[2])
    assert transport.channel(bulk=False) is None
    store.release()
    assert [await call.outcome for call in calls] == [(bytes((MISS,)), {})] * 3
    assert transport.channel(bulk=True) is not None
    await transport.aclose()


async def test_a_lone_worker_takes_bulk_calls() -> None:
    transport = await connected(ScriptedStore())
    assert transport.channel(bulk=True) is not None
    await transport.aclose()


async def test_a_call_that_blocks_is_abandoned_at_its_deadline_and_others_are_answered() -> None:
    store = ScriptedStore("a")
    store.held = {"held"}
    async with am.connect(store=store, timeout=30.0) as engine:
        with pytest.raises(am.RequestTimeout) as caught:
            await engine.exists("held", timeout=0.01)
        assert caught.value.phase == "awaiting reply"
        assert await engine.exists("a")
        store.release()
        assert await engine.exists("a")


async def test_questions_are_refused_when_every_thread_is_stuck_and_no_more_threads_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aiomooncake.transport.store._STUCK", -1.0)
    store = ScriptedStore("held")
    store.held = {"held"}
    transport = await connected(store, workers=2)
    calls = [ask(transport, "held"), ask(transport, "held")]
    before = threads()
    for _ in range(100):
        with pytest.raises(am.ConnectError, match=r"every thread for the store \(2\) has been inside a call"):
            transport.channel(bulk=False)
    assert threads() == before
    store.release()
    assert [await call.outcome for call in calls] == [(bytes((HIT,)), {})] * 2
    assert transport.channel(bulk=False) is not None
    await transport.aclose()


async def test_a_worker_that_was_blocked_takes_calls_again() -> None:
    store = ScriptedStore("a")
    store.held = {"held"}
    async with am.connect(store=store, connections=1, timeout=30.0) as engine:
        with pytest.raises(am.RequestTimeout):
            await engine.exists("held", timeout=0.01)
        with pytest.raises(am.RequestTimeout) as caught:
            await engine.exists("a", timeout=0.01)
        assert caught.value.phase == "queued"
        waiting = asyncio.create_task(engine.exists("a"))
        await asyncio.sleep(0)
        store.release()
        assert await waiting


async def test_closing_ends_a_blocked_call_and_does_not_wait_for_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_JOIN_LIMIT", 0.01)
    store = ScriptedStore()
    store.held = {"held"}
    transport = await connected(store, workers=2)
    call = ask(transport, "held")
    store.wait_until_blocked()
    await transport.aclose()
    assert isinstance(await call.outcome, am.ClosedError)
    assert transport.channel(bulk=False) is None
    assert any(thread.name == "aiomooncake store 1" for thread in threads())
    store.release()
    assert threads_end()
    await asyncio.sleep(0)  # what the thread had to say is for nobody


async def test_closing_twice_and_closing_what_was_never_connected_is_fine() -> None:
    transport = await connected(ScriptedStore())
    await transport.aclose()
    await transport.aclose()
    assert transport.open_channels == 0
    await StoreTransport(ScriptedStore(), workers=2).aclose()
    assert threads_end()


@pytest.mark.parametrize("store", [None, 5, object()], ids=["None", "int", "object"])
async def test_what_is_no_store_is_refused(store: Any) -> None:
    with pytest.raises(am.ConfigError, match="MooncakeDistributedStore"):
        StoreTransport(store, workers=1)


async def test_a_store_that_was_not_set_up_is_refused_before_it_is_asked() -> None:
    store = HealthyStore()
    store.health = 1
    with pytest.raises(am.ConnectError, match=r"setup\(\)"):
        await am.connect(store=store)
    assert not store.asked
    assert threads_end()


async def test_a_store_that_was_closed_meanwhile_is_not_asked() -> None:
    store = HealthyStore("a")
    async with am.connect(store=store) as engine:
        assert await engine.exists("a")
        store.health = 1
        with pytest.raises(am.ConnectError, match="closed"):
            await engine.exists("a")
        assert store.asked == [["a"]]
        store.health = 0
        assert await engine.exists("a")


def test_threads_end_when_the_loop_is_closed_under_them() -> None:
    store = ScriptedStore()
    store.held = {"held"}

    async def leave_a_call_behind() -> None:
        ask(await connected(store), "held")
        store.wait_until_blocked()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_a_call_behind())
    loop.close()
    assert len(threads()) == 1
    store.release()
    assert threads_end()


# ---- on a real store ----------------------------------------------------------------------------------------------

# A store's setup and close hold the GIL, and asking one that is not set up ends the process: so not in this one.
REAL_STORE = """
import asyncio, os, sys
import aiomooncake as am
from mooncake.store import MooncakeDistributedStore

async def main():
    store = MooncakeDistributedStore()
    try:
        await am.connect(store=store)
    except am.ConnectError:
        print("refused before setup")
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", sys.argv[1]) == 0
    async with am.connect(store=store, timeout=30.0) as engine:
        print(await engine.exists("store-real"), await engine.exists("store-absent"))
        keys = ["store-real", b"store-real", "", "store-absent", "store-real"]
        print((await engine.batch_exists(keys)).tolist())
        outcomes = await asyncio.gather(*map(engine.exists, ["store-real", 5, "\\ud800"]), return_exceptions=True)
        print([type(outcome).__name__ for outcome in outcomes])
        store.close()
        try:
            await engine.exists("store-real")
        except am.ConnectError:
            print("refused after close")

asyncio.run(main())
sys.stdout.flush()
os._exit(0)  # its own end is the store's business
"""


def test_a_real_store_is_asked_while_it_is_set_up_and_refused_otherwise(cluster: SharedCluster) -> None:
    asyncio.run(cluster.put("store-real", b"value"))
    ended = subprocess.run(
        [sys.executable, "-c", REAL_STORE, cluster.address], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stdout.splitlines() if not line.startswith(("I", "W", "E"))] == [
        "refused before setup",
        "True False",
        "[True, True, False, False, True]",
        "['bool', 'InvalidKeyError', 'InvalidKeyError']",
        "refused after close",
    ]
