"""The proxy and the scripted peer, against a small echo server, so that other tests may rely on them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from aiomooncake.testing import FaultProxy, ScriptedPeer, reset

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def echo_behind_proxy() -> AsyncIterator[tuple[FaultProxy, ScriptedPeer]]:
    async with ScriptedPeer(echo) as peer, FaultProxy(*split(peer.address)) as proxy:
        yield proxy, peer


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.send = writer.write
        self.drain = writer.drain
        self.finish = writer.write_eof
        self.receive = reader.readexactly
        self.receive_some = reader.read


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*split(address))
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def test_bytes_pass_unchanged_both_ways_on_many_connections() -> None:
    async def talk(number: int) -> None:
        async with connected(proxy.address) as client:
            for turn in range(10):
                client.send(b"%d:%d" % (number, turn))
                assert await client.receive(3) == b"%d:%d" % (number, turn)

    async with echo_behind_proxy() as (proxy, _):
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(talk, number)
        await proxy.wait_until(lambda: proxy.open == 0)
        assert proxy.accepted == 10
        assert proxy.requests.received == proxy.requests.forwarded == proxy.answers.forwarded == 300


async def test_a_megabyte_passes_unchanged() -> None:
    data = bytes(range(256)) * 4096
    async with echo_behind_proxy() as (proxy, _), connected(proxy.address) as client:
        client.send(data)
        assert await client.receive(len(data)) == data


async def test_a_finished_client_still_gets_its_answer_and_then_the_end() -> None:
    async with echo_behind_proxy() as (proxy, _), connected(proxy.address) as client:
        client.send(b"last")
        client.finish()
        assert await client.receive(4) == b"last"
        assert await client.receive_some(1) == b""


async def test_held_answers_come_in_order_after_the_release() -> None:
    async with echo_behind_proxy() as (proxy, peer), connected(proxy.address) as client:
        proxy.answers.hold()
        client.send(b"one")
        await proxy.answers.wait_held(3)
        client.send(b"two")
        await proxy.answers.wait_held(6)
        assert proxy.answers.forwarded == 0
        assert peer.received[0] == b"onetwo"
        proxy.answers.release()
        assert await client.receive(6) == b"onetwo"


async def test_held_requests_do_not_reach_the_target() -> None:
    async with echo_behind_proxy() as (proxy, peer), connected(proxy.address) as client:
        proxy.requests.hold()
        client.send(b"question")
        await proxy.requests.wait_held(8)
        assert proxy.requests.received == 8
        assert await peer.wait_received(0) == b""
        proxy.requests.release()
        assert await client.receive(8) == b"question"


async def test_holding_long_enough_pushes_back_on_the_sender() -> None:
    async with echo_behind_proxy() as (proxy, _), connected(proxy.address) as client:
        proxy.requests.hold()
        client.send(bytes(64 << 20))
        draining = asyncio.ensure_future(client.drain())
        await proxy.requests.wait_held(1 << 20)
        assert not draining.done()
        assert proxy.requests.queued < 2 << 20
        await proxy.cut()
        with pytest.raises(ConnectionError):
            await draining


async def test_a_cut_resets_both_sides_and_the_next_connection_works() -> None:
    async with echo_behind_proxy() as (proxy, peer):
        async with connected(proxy.address) as client:
            client.send(b"x")
            await client.receive(1)
            await proxy.cut()
            assert proxy.open == 0
            with pytest.raises(ConnectionResetError):
                await client.receive(1)
        async with connected(proxy.address) as client:
            client.send(b"y")
            assert await client.receive(1) == b"y"
        assert [bytes(data) for data in peer.received] == [b"x", b"y"]


async def test_hanging_up_shows_the_client_an_orderly_end() -> None:
    async with echo_behind_proxy() as (proxy, _), connected(proxy.address) as client:
        client.send(b"x")
        await client.receive(1)
        await proxy.hang_up()
        assert await client.receive_some(1) == b""


@pytest.mark.parametrize("count", [0, 1, 5, 9])
async def test_a_cut_falls_after_exactly_so_many_answer_bytes(count: int) -> None:
    async with echo_behind_proxy() as (proxy, _), connected(proxy.address) as client:
        proxy.answers.cut_after(count)
        client.send(b"0123456789")
        assert await client.receive(count) == b"0123456789"[:count]
        with pytest.raises(ConnectionResetError):
            await client.receive(1)
        assert proxy.answers.forwarded == count


async def test_a_cut_falls_after_exactly_so_many_request_bytes() -> None:
    async with echo_behind_proxy() as (proxy, peer), connected(proxy.address) as client:
        proxy.requests.cut_after(4)
        client.send(b"0123456789")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.receive(10)
        assert await peer.wait_received(4) == b"0123"


async def test_a_refused_port_refuses_and_serves_again_on_the_same_address() -> None:
    async with echo_behind_proxy() as (proxy, _), connected(proxy.address) as early:
        address = proxy.address
        early.send(b"x")
        await early.receive(1)
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*split(address))
        early.send(b"still here")
        assert await early.receive(10) == b"still here"
        proxy.resume()
        assert proxy.address == address
        async with connected(address) as late:
            late.send(b"y")
            assert await late.receive(1) == b"y"


async def test_a_target_that_is_down_shows_as_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        host, port = closed.getsockname()
    async with FaultProxy(host, port) as proxy, connected(proxy.address) as client:
        with pytest.raises(ConnectionResetError):
            await client.receive(1)


async def test_bytes_leave_one_at_a_time_when_asked_to() -> None:
    async with echo_behind_proxy() as (proxy, _), connected(proxy.address) as client:
        forwarded: list[int] = []
        proxy.answers.chunk_size = 1
        client.send(b"0123456789")
        for count in range(1, 11):
            await proxy.wait_until(lambda count=count: proxy.answers.forwarded >= count)  # type: ignore[misc]
            forwarded.append(proxy.answers.forwarded)
        assert await client.receive(10) == b"0123456789"
        assert forwarded == list(range(1, 11))


async def test_delayed_bytes_arrive_late_and_in_order() -> None:
    loop = asyncio.get_running_loop()
    async with echo_behind_proxy() as (proxy, _), connected(proxy.address) as client:
        proxy.answers.delay = 0.05
        start = loop.time()
        client.send(b"one")
        await proxy.answers.wait_received(3)
        proxy.answers.delay = 0
        client.send(b"two")
        assert await client.receive(6) == b"onetwo"
        assert loop.time() - start >= 0.049  # uvloop's clock moves in milliseconds


async def test_a_transform_replaces_what_passes() -> None:
    async with echo_behind_proxy() as (proxy, _), connected(proxy.address) as client:
        proxy.answers.transform = bytes.upper
        client.send(b"abc")
        assert await client.receive(3) == b"ABC"
        proxy.answers.transform = lambda data: b"<" + data + b">"
        client.send(b"x")
        assert await client.receive(3) == b"<x>"
        proxy.answers.transform = lambda _: b""
        client.send(b"lost")
        await proxy.answers.wait_received(8)
        proxy.answers.transform = None
        client.send(b"kept")
        assert await client.receive(4) == b"kept"


async def test_injected_bytes_come_after_what_waits() -> None:
    async with echo_behind_proxy() as (proxy, _), connected(proxy.address) as client:
        proxy.answers.hold()
        client.send(b"real")
        await proxy.answers.wait_held(4)
        proxy.answers.inject(b"garbage")
        proxy.answers.release()
        assert await client.receive(11) == b"realgarbage"


async def test_leaving_closes_every_connection_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with ScriptedPeer(echo) as peer, FaultProxy(*split(peer.address)) as proxy:
        clients = [await asyncio.open_connection(*split(proxy.address)) for _ in range(5)]
        proxy.answers.hold()
        for _, writer in clients:
            writer.write(b"x")
        await proxy.answers.wait_held(5)
    assert asyncio.all_tasks() == before
    for reader, writer in clients:
        assert await reader.read() == b""
        writer.close()


async def test_an_error_in_the_body_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with echo_behind_proxy():
            raise ZeroDivisionError
    with anyio.move_on_after(0) as scope:
        async with echo_behind_proxy():
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_script_may_reset_its_connection() -> None:
    async def refuse_after_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        reset(writer)

    async with ScriptedPeer(refuse_after_hello) as peer, connected(peer.address) as client:
        client.send(b"hello")
        with pytest.raises(ConnectionResetError):
            await client.receive(1)


async def test_a_peer_records_what_its_script_never_reads() -> None:
    async def ignore(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await anyio.sleep_forever()

    async with ScriptedPeer(ignore) as peer, connected(peer.address) as client:
        client.send(b"hello")
        assert await peer.wait_received(5) == b"hello"


async def test_a_failing_script_fails_the_test() -> None:
    async def fail(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        raise ZeroDivisionError

    with pytest.raises(BaseException) as caught:  # noqa: PT011 -- a group, whose class 3.10 does not have
        async with ScriptedPeer(fail) as peer, connected(peer.address) as client:
            await client.receive(1)
    assert "ZeroDivisionError" in repr(caught.value)
