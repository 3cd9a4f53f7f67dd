"""Peers that are no Mooncake master, or a broken one: the documented error, which says what was seen, and recovery."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest

import aiomooncake as am
from aiomooncake.errors import (
    AioMooncakeError,
    ConnectError,
    ConnectionLostError,
    RemoteProtocolError,
    RequestTimeout,
    RpcError,
    StoreError,
)
from aiomooncake.testing import ScriptedPeer, reset

from ..wire import naive
from .support import (
    HANG,
    READY,
    FakeMaster,
    Request,
    answer_soon,
    new_keys,
    outcomes,
    read_request,
    stay_silent,
    until,
    with_fake_master,
)

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_sockets")]

ENDED = (ConnectError, ConnectionLostError)


def header(
    *, magic: int = 0x15, version: int = 0, error: int = 0, seq: int = 1, length: int = 0, extra: int = 0
) -> bytes:
    return struct.pack("<BBBBIII", magic, version, error, 0, seq, length, extra)


# ---- peers that one cannot connect to -----------------------------------------------------------------------------

# What a peer says to the first bytes it gets, and what the error says of that.
STRANGERS: dict[str, tuple[bytes, str]] = {
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "this port speaks HTTP"),
    "HTML": (b"<html><body>no</body></html>", "this port speaks HTTP"),
    "a TLS alert": (b"\x15\x03\x01\x00\x02\x02\x0a", "this port speaks TLS"),
    "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n", "not a coro_rpc answer: b'SSH-2.0"),
    "Redis": (b"-ERR unknown command\r\n", "not a coro_rpc answer: b'-ERR unknown"),
    "zeros": (bytes(64), "not a coro_rpc answer"),
    "another magic number": (header(magic=0x16) + READY, "not a coro_rpc answer"),
    "another version": (header(version=1, length=len(READY)) + READY, "not a coro_rpc answer"),
    "one wrong byte": (b"\0", "not a coro_rpc answer"),
    "an answer to another question": (naive.frame(7, READY), "answer 7 where 1 is next"),
    "4 GB": (header(length=0xFFFFFFFF) + b"x" * 100, "4294967295 bytes; the cap is"),
    "an attachment": (header(length=len(READY), extra=5) + READY + b"12345", "attachment of 5 bytes"),
    "an unknown function": (naive.frame(1, naive.string(b"no such function"), 11), "function_not_registered"),
    "a standby": (
        naive.frame(1, naive.header(naive.VERSION, 1, debug=True) + b"\0" + (-1010).to_bytes(4, "little", signed=True)),
        "not serving: .*-1010",
    ),
    "ready with what is no version": (naive.frame(1, READY + b"more"), "string of 5 bytes where 9 follow"),
    "ready with another type": (naive.frame(1, naive.answer([True])), "ServiceReady's answer"),
    "no body": (naive.frame(1, b""), "ServiceReady's answer"),
    "a list for the empty question": (
        naive.frame(1, READY) + naive.frame(2, naive.answer([True, True], debug=True)),
        "answered 2 keys where 0 were asked",
    ),
}


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("speaks_first", [False, True], ids=["answers", "speaks first"])
async def test_a_stranger_is_refused_with_what_it_said(name: str, speaks_first: bool) -> None:
    said, message = STRANGERS[name]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not speaks_first:
            await read_request(reader)
        writer.write(said)
        await stay_silent(reader, writer)

    if speaks_first and said.startswith(b"\x15\0"):
        message = f"({message}|to nothing that was asked)"
    async with ScriptedPeer(script) as peer:
        with anyio.fail_after(HANG), pytest.raises(ConnectError, match=message) as caught:
            await am.connect(peer.address, timeout=None)
        assert peer.address in str(caught.value)
        assert isinstance(caught.value.__cause__, AioMooncakeError)
        assert len(peer.received) == 1


async def test_a_stranger_that_speaks_before_we_do_is_refused_for_what_it_said() -> None:
    # A thread of its own: uvloop may take what arrives before it lets `create_connection` return.
    def greet() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                peer.sendall(b"220 mail.example ESMTP\r\n")
                peers.append(peer)

    peers: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet)
        thread.start()
        for _ in range(50):
            with pytest.raises(ConnectError, match="not a coro_rpc answer: b'220 mail"):
                await am.connect(f"127.0.0.1:{listener.getsockname()[1]}", timeout=5)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("how", ["closes", "resets", "closes after the request", "closes after half an answer"])
async def test_a_peer_that_leaves_is_a_lost_connection(how: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "after" in how:
            await read_request(reader)
        if "half" in how:
            writer.write(naive.frame(1, READY)[:-3])
        if how == "resets":
            reset(writer)

    async with ScriptedPeer(script) as peer:
        with anyio.fail_after(HANG), pytest.raises(ConnectError, match=r"lost|reset|closed") as caught:
            await am.connect(peer.address, timeout=None)
        assert peer.address in str(caught.value)


async def test_a_silent_peer_is_given_up_at_the_timeout() -> None:
    async with ScriptedPeer(stay_silent) as peer:
        with pytest.raises(ConnectError, match=rf"{peer.address} .*0\.1 s.*hung"):
            await am.connect(peer.address, timeout=0.1)


async def test_a_peer_that_serves_only_one_connection_serves() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (master if len(peer.received) == 1 else stay_silent)(reader, writer)

    master = FakeMaster()
    async with ScriptedPeer(script) as peer, am.connect(peer.address, connections=3, timeout=1) as engine:
        assert engine.stats().connections_open == 1
        assert await outcomes(engine.exists(key) for key in new_keys(20)) == [True] * 20
        assert (await engine.batch_exists(new_keys(5000))).all()


# ---- peers that go bad when asked ---------------------------------------------------------------------------------


def long_list(seq: int, announced: int) -> bytes:
    body = naive.header(naive.RESULTS, 8, debug=True) + announced.to_bytes(8, "little") + b"\1\1" * 3
    return naive.frame(seq, body)


# What is answered to a question of three keys with the sequence number it gets, and what the error says.
LIES: dict[str, tuple[Callable[[int], bytes], str]] = {
    "HTTP": (lambda seq: b"HTTP/1.1 200 OK\r\n\r\n", "speaks HTTP"),
    "an unasked answer": (lambda seq: naive.frame(seq + 1, naive.answer([True] * 3)), "where"),
    "an answer to the past": (lambda seq: naive.frame(seq - 1, naive.answer([True] * 3)), "where"),
    "4 GB": (lambda seq: header(seq=seq, length=0xFFFFFFFF), "announces 4294967295 bytes"),
    "just too long": (lambda seq: header(seq=seq, length=1 << 20), "announces 1048576 bytes"),
    "an attachment": (lambda seq: header(seq=seq, length=3, extra=1 << 31), "attachment of 2147483648 bytes"),
    "2**60 keys": (lambda seq: long_list(seq, 1 << 60), "answered 1152921504606846976 keys where 3 were asked"),
    "too many keys": (lambda seq: naive.frame(seq, naive.answer([True] * 4)), "answered 4 keys where 3 were asked"),
    "too few keys": (lambda seq: naive.frame(seq, naive.answer([True] * 2)), "answered 2 keys where 3 were asked"),
    "no keys": (lambda seq: naive.frame(seq, naive.answer([])), "answered 0 keys where 3 were asked"),
    "a list that is cut": (lambda seq: naive.frame(seq, naive.answer([True] * 3)[:-1]), "missing"),
    "a list with more": (lambda seq: naive.frame(seq, naive.answer([True] * 3) + b"\0"), "1 bytes follow"),
    "neither hit nor miss": (lambda seq: naive.frame(seq, naive.answer([True] * 3)[:-1] + b"\2"), "02, not 00 or 01"),
    "another type": (lambda seq: naive.frame(seq, READY), "BatchExistKey's answer"),
    "an empty body": (lambda seq: naive.frame(seq, b""), "BatchExistKey's answer"),
    "an error that is no text": (lambda seq: naive.frame(seq, b"\0\0\0\0\0", 10), "error message"),
}


@pytest.mark.parametrize("name", LIES)
async def test_a_lie_is_a_protocol_error_for_whoever_asked(name: str) -> None:
    lie, message = LIES[name]

    async def tell_it(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(lie(request.seq))

    async with with_fake_master() as (master, peer, engine):
        master.misbehave = tell_it
        for _ in range(3):
            ended = await outcomes([engine.batch_exists(["a", "b", "c"])])
            assert isinstance(ended[0], RemoteProtocolError)
            assert message in str(ended[0])
            assert peer.address in str(ended[0])
        master.misbehave = None
        assert (await engine.batch_exists(["a", "b", "c"])).all()
        assert engine.stats().errors == 3


@pytest.mark.parametrize("code", [*range(1, 18), 255])
async def test_an_error_of_the_rpc_layer_keeps_its_number_and_the_connection(code: int) -> None:
    async def fail(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(naive.frame(request.seq, naive.string(b"because \xff"), code))

    async with with_fake_master() as (master, peer, engine):
        master.misbehave = fail
        for ask in (engine.exists("a"), engine.batch_exists(["a", "b"]), engine.prefix_length(["a"])):
            (error,) = await outcomes([ask])
            assert isinstance(error, RpcError)
            assert (error.code, error.detail) == (code, "because \N{REPLACEMENT CHARACTER}")
            assert str(code) in str(error)
        master.misbehave = None
        assert await engine.exists("a")
        assert (len(peer.received), engine.stats().connections_lost, engine.stats().errors) == (2, 0, 3)


async def test_an_error_is_its_own_for_each_of_many_callers() -> None:
    async def fail(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(naive.frame(request.seq, naive.string(b"thrown"), 10))

    async with with_fake_master() as (master, _, engine):
        master.misbehave = fail
        errors = await outcomes(engine.exists(key) for key in new_keys(100))
        assert {type(error) for error in errors} == {RpcError}
        assert len(set(map(id, errors))) == 100


async def test_a_peer_that_hangs_up_on_every_question_is_no_endless_loop() -> None:
    async def hang_up(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with with_fake_master(timeout=20) as (master, peer, engine):
        master.misbehave = hang_up
        ended = await outcomes(engine.exists(key) for key in new_keys(20))
        assert all(isinstance(error, ENDED) for error in ended)
        assert len(peer.received) < 50
        master.misbehave = None
        assert await answer_soon(engine, "a")


async def test_a_peer_that_falls_silent_is_a_timeout_and_then_replaced() -> None:
    async def say_nothing(request: Request, writer: asyncio.StreamWriter) -> None:
        pass

    async with with_fake_master(connections=1) as (master, peer, engine):
        master.misbehave = say_nothing
        for ended in await outcomes(engine.exists(key, timeout=0.05) for key in new_keys(30)):
            assert isinstance(ended, RequestTimeout)
        master.misbehave = None
        # The old connection owes its answers; the question waits for the new one.
        assert await engine.exists("a", timeout=20)
        assert len(peer.received) == 2


async def test_an_answer_of_one_byte_at_a_time_is_an_answer() -> None:
    async def drip(request: Request, writer: asyncio.StreamWriter) -> None:
        for byte in master.answer(request):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    master = FakeMaster({b"0", b"2"})
    master.misbehave = drip
    async with with_fake_master(master) as (_, _, engine):
        assert (await engine.batch_exists(["0", "1", "2"])).tolist() == [True, False, True]


async def test_an_answer_that_never_gets_to_its_end_is_a_timeout() -> None:
    async def drip(request: Request, writer: asyncio.StreamWriter) -> None:
        for byte in header(seq=request.seq, length=2000) + bytes(2000):
            writer.write(bytes([byte]))
            await asyncio.sleep(0.002)

    async with with_fake_master() as (master, _, engine):
        master.misbehave = drip
        for ended in await outcomes(engine.exists(key, timeout=0.05) for key in new_keys(10)):
            assert isinstance(ended, RequestTimeout)


async def test_answers_of_several_questions_in_one_piece_find_their_askers() -> None:
    async def answer_in_pairs(request: Request, writer: asyncio.StreamWriter) -> None:
        owed.append(master.answer(request))
        if len(owed) == 2:
            writer.write(b"".join(owed))
            owed.clear()

    owed: list[bytes] = []
    master = FakeMaster({b"a"})
    master.misbehave = answer_in_pairs
    async with with_fake_master(master, connections=1, max_batch_keys=1) as (_, _, engine):
        assert await outcomes([engine.exists("a"), engine.exists("b")]) == [True, False]
        assert await outcomes(engine.exists(key) for key in "abab") == [True, False, True, False]


async def test_answers_in_the_wrong_order_are_given_to_nobody() -> None:
    async def swap(request: Request, writer: asyncio.StreamWriter) -> None:
        owed.append(master.answer(request))
        if len(owed) == 2:
            writer.write(owed.pop() + owed.pop())

    owed: list[bytes] = []
    master = FakeMaster({b"a"})
    async with with_fake_master(master, connections=1, max_batch_keys=1) as (_, _, engine):
        master.misbehave = swap
        for ended in await outcomes([engine.exists("a"), engine.exists("b")]):
            assert isinstance(ended, (RemoteProtocolError, *ENDED))
        master.misbehave = None
        assert await answer_soon(engine, "a")


def mutants(frame: bytes) -> list[bytes]:
    """Each byte changed in several ways, and the frame cut and lengthened at each place."""
    chosen = random.Random(11)
    changed = []
    for at, byte in enumerate(frame):
        for value in sorted({byte ^ 1, byte ^ 0x80, 0, 0xFF, chosen.randrange(256)} - {byte}):
            changed.append(frame[:at] + bytes([value]) + frame[at + 1 :])
        changed.append(frame[:at] + frame[at + 1 :])
        changed.append(frame[:at] + bytes([chosen.randrange(256)]) + frame[at:])
    return changed


async def test_a_mutated_answer_is_an_error_or_what_it_says() -> None:
    async def mutate(request: Request, writer: asyncio.StreamWriter) -> None:
        sent = mutant[:4] + request.seq.to_bytes(4, "little") + mutant[8:] if mutant[4:8] == seq else mutant
        writer.write(sent)
        writer.close()  # what waits for more learns that there is none

    def said(frame: bytes) -> list[bool | int] | None:
        """What a frame says to a question of two keys, as plainly as the format reads."""
        whole = frame[:4] == bytes([0x15, 0, 0, 0]) and frame[4:8] == seq and frame[12:16] == bytes(4)
        end = 16 + int.from_bytes(frame[8:12], "little")
        return naive.read_answer(frame[16:end], 2) if whole and end <= len(frame) else None

    seq = (0x01020304).to_bytes(4, "little")
    mutant = b""
    count = 0
    async with with_fake_master(connections=1, timeout=20) as (master, _, engine):
        for answers in ([True, False], [-600, True]):
            for mutant in mutants(naive.frame(0x01020304, naive.answer(answers, debug=True))):
                master.misbehave = mutate
                (ended,) = await outcomes([engine.batch_exists(["a", "b"])])
                expected = said(mutant)
                if expected is None:
                    assert isinstance(ended, (RemoteProtocolError, RpcError, *ENDED)), mutant.hex()
                elif set(expected) <= {True, False} and not any(type(each) is int for each in expected):
                    assert not isinstance(ended, AioMooncakeError), mutant.hex()
                    assert ended.tolist() == expected
                else:
                    assert isinstance(ended, StoreError), mutant.hex()
                    assert ended.code in expected
                count += 1
                master.misbehave = None
                await until(lambda: engine.stats().connections_open == 0)
                assert await answer_soon(engine, "a")
    assert count > 200


async def test_a_peer_that_is_replaced_by_a_master_of_the_other_signature_is_asked_anew() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        form = naive.header(naive.KEYS if is_old else naive.KEYS_AND_TENANT, 1)[:4]
        while True:
            request = await read_request(reader)
            if request.body == b"" or request.body[:4] == form:
                writer.write(master.answer(request))
            else:
                writer.write(naive.frame(request.seq, naive.string(b"invalid"), 4))

    async def replace_peer() -> None:
        await until(lambda: engine.stats().connections_open == 2)
        while writers:
            writers.pop().close()
        await until(lambda: engine.stats().connections_open == 0)

    writers: list[asyncio.StreamWriter] = []
    master, is_old = FakeMaster({b"a"}), False
    async with ScriptedPeer(script) as peer, am.connect(peer.address) as engine:
        assert engine.stats().master_takes_tenant
        is_old = True
        await replace_peer()
        assert await outcomes([engine.exists("a"), engine.exists("b")]) == [True, False]
        assert engine.stats().master_takes_tenant is False
        is_old = False
        await replace_peer()
        assert await outcomes([engine.exists("a"), engine.exists("b")]) == [True, False]
        assert engine.stats().master_takes_tenant is True
