"""What befalls a whole loop or process: interrupts, forks, and loops that are closed too early."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

import aiomooncake as am
from aiomooncake.errors import WrongLoopError
from aiomooncake.testing import ScriptedPeer

from .support import FakeMaster, Request, outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ..conftest import SharedCluster

BOTH_LOOPS = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_interrupt_ends_everything_in_order(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def interrupt(request: Request, writer: asyncio.StreamWriter) -> None:
        if len(master.questions) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    async def main() -> None:
        async with ScriptedPeer(master) as peer, am.connect(peer.address, timeout=None) as engine:
            engines.append(engine)
            await asyncio.gather(*(engine.exists(f"{number}") for number in range(100)))

    engines: list[am.Engine] = []
    master = FakeMaster()
    master.misbehave = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(main())
    assert "closed" in repr(engines.pop())
    gc.collect()


@BOTH_LOOPS
def test_a_loop_that_is_closed_under_an_engine_is_no_crash(
    new_loop: Callable[[], asyncio.AbstractEventLoop], cluster: SharedCluster
) -> None:
    async def connect() -> tuple[am.Engine, asyncio.Task[Any]]:
        engine = await am.connect(cluster.address)
        assert not await engine.exists("a")
        return engine, asyncio.ensure_future(outcome(engine.exists("b")))

    async def elsewhere(engine: am.Engine) -> None:
        with pytest.raises(WrongLoopError):
            await engine.exists("a")
        with pytest.raises(WrongLoopError):
            await engine.aclose()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop = new_loop()
        engine, task = loop.run_until_complete(connect())
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        loop.close()
        asyncio.run(elsewhere(engine))
        assert engine.stats().questions >= 2
        del engine, task
        gc.collect()
    messages = [str(warning.message) for warning in caught if warning.category is ResourceWarning]
    assert any("never closed" in message for message in messages)


@BOTH_LOOPS
def test_a_loop_that_stops_and_runs_again_keeps_its_engine(
    new_loop: Callable[[], asyncio.AbstractEventLoop], cluster: SharedCluster
) -> None:
    async def connect() -> am.Engine:
        return await am.connect(cluster.address)

    loop = new_loop()
    try:
        engine = loop.run_until_complete(connect())
        for _ in range(3):
            assert not loop.run_until_complete(engine.exists("a"))
        loop.run_until_complete(engine.aclose())
    finally:
        loop.close()


FORK = """
    import asyncio, gc, os, sys, warnings
    import uvloop
    import aiomooncake as am

    async def ask(engine):
        return await engine.exists("a")

    def child(engine):
        def expect_wrong_loop(question):
            try:
                question.send(None)
            except am.WrongLoopError:
                return
            raise AssertionError("no WrongLoopError")

        for question in (engine.exists("a"), engine.batch_exists(["a"]), engine.prefix_length(["a"]), engine.aclose()):
            expect_wrong_loop(question)
        try:
            asyncio.run(ask(engine))
        except am.WrongLoopError:
            pass
        else:
            raise AssertionError("no WrongLoopError on a new loop")

        async def connect_anew(address):
            async with am.connect(address) as own:
                return await own.exists("a")

        assert asyncio.run(connect_anew(sys.argv[2])) is False

    async def main():
        engine = await am.connect(sys.argv[2], timeout=10)
        waiting = asyncio.ensure_future(engine.exists("b"))
        await asyncio.sleep(0)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                waiting = None
                child(engine)
                warnings.simplefilter("ignore")
                del engine
                gc.collect()
                status = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert status == 0, status
        assert await waiting is False
        for _ in range(20):
            assert await asyncio.gather(*(engine.exists(str(number)) for number in range(50))) == [False] * 50
        assert engine.stats().connections_lost == 0
        await engine.aclose()

    (asyncio.run if sys.argv[1] == "asyncio" else uvloop.run)(main())
    print("fine")
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_fork_is_told_so_and_leaves_its_parent_alone(loop: str, cluster: SharedCluster) -> None:
    script = textwrap.dedent(FORK)
    done = subprocess.run(
        [sys.executable, "-c", script, loop, cluster.address], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
