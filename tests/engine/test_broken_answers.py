"""An answer that breaks the protocol ends its connection; what waits for a slot goes on over the next one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import pytest

from aiomooncake.errors import RemoteProtocolError

from ..wire import naive
from .support import (
    HANG,
    FakeMaster,
    Request,
    new_keys,
    outcome,
    plain,
    read_request,
    until,
    with_fake_master,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_sockets")]

BREAKS: dict[str, Callable[[Request], bytes]] = {
    "in the value": lambda request: naive.frame(request.seq, naive.answer([True], debug=True)[:-1] + b"\2"),
    "in the count": lambda request: naive.frame(request.seq, naive.answer([True, True], debug=True)),
    "in the error message": lambda request: naive.frame(request.seq, b"no string", 12),
    "in the header": lambda request: b"\x16" + naive.frame(request.seq, naive.answer([True], debug=True))[1:],
}


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("where", BREAKS)
async def test_the_only_call_gets_a_broken_answer_and_the_queue_goes_on(where: str, size: int) -> None:
    held = asyncio.Event()

    async def break_the_first(request: Request, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        master.misbehave = None
        writer.write(BREAKS[where](request))

    master = FakeMaster()
    master.misbehave = break_the_first
    async with with_fake_master(master, connections=1, max_in_flight=1, timeout=None) as (_, _, engine):
        first, *others = new_keys(1 + size)
        broken = asyncio.ensure_future(outcome(engine.exists(first)))
        await until(lambda: len(master.questions) == 1)
        waiting = asyncio.ensure_future(outcome(engine.batch_exists(others)))
        await until(lambda: engine.stats().pending_keys == size)
        held.set()
        with anyio.fail_after(HANG):
            assert isinstance(await broken, RemoteProtocolError)
            assert plain(await waiting) == [True] * size


class Leaver(FakeMaster):
    """Leaves right after the handshake, for so many connections."""

    def __init__(self, visits: int) -> None:
        super().__init__()
        self.visits = visits

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.visits:
            await super().__call__(reader, writer)
            return
        self.visits -= 1
        answers = [self.answer(await read_request(reader)) for _ in range(2)]
        writer.write(b"".join(answers) + (b"one more word" if self.visits % 2 else b""))


async def test_a_connection_that_ends_right_after_the_handshake_is_made_again() -> None:
    master = Leaver(20)
    async with with_fake_master(master, connections=1, errors="miss", timeout=None) as (_, _, engine):
        with anyio.fail_after(HANG):
            while not await engine.exists("key"):
                await anyio.sleep(0.001)
    assert not master.visits
