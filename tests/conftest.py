"""One real cluster for the whole run, both event loops, and the checks that no test may leave anything behind."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import start_blocking_portal

from aiomooncake.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
    from typing import ParamSpec, TypeVar

    from anyio.from_thread import BlockingPortal

    P = ParamSpec("P")
    T = TypeVar("T")


def pytest_configure() -> None:
    """Let Ctrl-C interrupt again: a shell starts what it runs in the background with it ignored, and that is inherited.

    The programs that tests start, and then interrupt, would ignore it too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(
    scope="module",
    params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})],
    ids=["asyncio", "uvloop"],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Tests marked `anyio` run on both loops; on asyncio's in debug mode."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


class SharedCluster:
    """A cluster that lives on an event loop of its own, for tests that each have theirs.

    Its methods are `LocalCluster`'s and can be awaited on any loop, by `asyncio.run` too. Whoever puts keys chooses
    names that no other test uses; whoever wants to stop the master takes `own_cluster`.
    """

    def __init__(self, cluster: LocalCluster, portal: BlockingPortal) -> None:
        self._portal = portal
        self.address = cluster.address
        self.put = self._from_any_loop(cluster.put)
        self.remove = self._from_any_loop(cluster.remove)
        self.metrics = self._from_any_loop(cluster.metrics)

    def _from_any_loop(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return await asyncio.wrap_future(self._portal.start_task_soon(functools.partial(function, *args, **kwargs)))

        return call


@pytest.fixture(scope="session")
def cluster() -> Iterator[SharedCluster]:
    """A real master and a client that holds data, started once. Nobody stops it or depends on what it does not hold."""
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(LocalCluster()) as cluster:
        yield SharedCluster(cluster, portal)


@pytest.fixture
async def own_cluster(anyio_backend: object) -> AsyncIterator[LocalCluster]:
    """A real cluster for one test, which may kill, stop and restart it."""
    async with LocalCluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_loop_errors() -> Iterator[None]:
    """Fail the test when an event loop reports what nobody handled, such as an exception in a callback."""
    reports: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reports.append(self.format(record))

    handler = Collect(logging.ERROR)
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    try:
        yield
        gc.collect(1)  # what was dropped with an exception nobody took reports itself when collected
    finally:
        logger.removeHandler(handler)
    if reports:
        pytest.fail("unhandled in an event loop:\n" + "\n".join(reports))


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fail the test when a thread that it started does not end with it."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while leaked := [thread for thread in threading.enumerate() if thread not in before]:
        if time.monotonic() > deadline:
            pytest.fail(f"threads still running: {leaked}")
        time.sleep(0.005)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Let async tests also fail when a task that they started is still there at their end."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _without_leaked_tasks(pyfuncitem.obj)


def _without_leaked_tasks(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    @functools.wraps(test)
    async def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        before = asyncio.all_tasks()
        await test(*args, **kwargs)
        for _ in range(10):  # turns of the loop, for what is cancelled and has not noticed yet
            if asyncio.all_tasks() <= before:
                return
            await asyncio.sleep(0)
        leaked = asyncio.all_tasks() - before
        for task in leaked:
            task.cancel()
        pytest.fail(f"tasks still running: {leaked}")

    return checked
