"""A Connection called as an event loop would call it, with a transport that only notes what is done to it."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiomooncake.errors import (
    AioMooncakeError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    InvalidKeyError,
    RemoteProtocolError,
    RpcError,
)
from aiomooncake.reply import Reply
from aiomooncake.transport.connection import Connection
from aiomooncake.wire.messages import BATCH_EXIST_KEY, MAX_MESSAGE, SERVICE_READY, largest_batch_exist_answer

from ..wire import naive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiomooncake.wire.messages import Key

VERSION = naive.header(naive.VERSION, 1, debug=True) + b"\1\0052.0.0"
STANDBY = naive.header(naive.VERSION, 1, debug=True) + b"\0" + (-1010).to_bytes(4, "little", signed=True)
NO_VERSION = bytes.fromhex("cd6828af0487fa010001")
NOTHING_ASKED = naive.answer([], debug=True)
WRONG_ARGUMENTS = naive.string(b"invalid rpc arg", debug=True)


class Wire(asyncio.Transport):
    """What a Connection writes to. `frames` are (seq, function, body)."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[int, int, bytes]] = []
        self.aborted = 0
        self.on_write: Callable[[], None] = lambda: None

    def write(self, data: Any) -> None:
        assert not self.aborted, "written to after abort"
        magic, seq, function, length, attachment = struct.unpack_from("<IIIII", data)
        assert (magic, attachment, len(data)) == (0x15, 0, 20 + length)
        self.frames.append((seq, function, bytes(data[20:])))
        self.on_write()

    def abort(self) -> None:
        self.aborted += 1


class Asked:
    """A call that notes how it ended."""

    def __init__(self, *keys: Key) -> None:
        self.keys: Sequence[Key] = keys
        self.ends: list[Reply | AioMooncakeError] = []
        self.on_end: Callable[[], None] = lambda: None

    def answered(self, reply: Reply) -> None:
        self.ends.append(reply)
        self.on_end()

    def failed(self, error: AioMooncakeError) -> None:
        self.ends.append(error)
        self.on_end()

    @property
    def error(self) -> AioMooncakeError:
        (end,) = self.ends
        assert isinstance(end, AioMooncakeError)
        return end

    @property
    def bits(self) -> bytes:
        (end,) = self.ends
        assert isinstance(end, Reply)
        return end.bits


class Peer:
    """A Connection, its wire, and the master's side of it."""

    def __init__(self, *, max_in_flight: int = 2, max_batch_keys: int = 100) -> None:
        self.wire = Wire()
        self.rooms = 0
        self.lost: list[Connection] = []
        self.on_lost: Callable[[], None] = lambda: None
        self.answers_given = 0
        self.connection = Connection(
            "10.0.0.1:50051",
            max_in_flight=max_in_flight,
            max_batch_keys=max_batch_keys,
            on_room=self._room,
            on_lost=self._lost,
        )
        self.connection.connection_made(self.wire)

    def _room(self) -> None:
        assert self.connection.has_room
        self.rooms += 1

    def _lost(self, connection: Connection) -> None:
        assert not connection.has_room
        self.lost.append(connection)
        self.on_lost()

    def next_answer(self, body: bytes, error: int = 0) -> bytes:
        seq = self.wire.frames[self.answers_given][0]
        self.answers_given += 1
        return naive.frame(seq, body, error)

    def answer(self, body: bytes, error: int = 0) -> None:
        self.connection.data_received(self.next_answer(body, error))

    def ask(self, *keys: Key) -> Asked:
        call = Asked(*keys)
        self.connection.send(call)
        return call

    async def handshake(self, *answers: tuple[bytes, int] | BaseException | None) -> None:
        """Shake hands, with a master that gives these answers, or with one that is lost instead."""
        task = asyncio.ensure_future(self.connection.handshake("team-a"))
        await asyncio.sleep(0)
        for answer in answers:
            if isinstance(answer, tuple):
                self.answer(*answer)
            else:
                assert answer is None or isinstance(answer, Exception)
                self.connection.connection_lost(answer)
        await task


def established(*, max_in_flight: int = 2, max_batch_keys: int = 100) -> Peer:
    """A connection to a new master, ready for calls."""
    peer = Peer(max_in_flight=max_in_flight, max_batch_keys=max_batch_keys)
    asyncio.run(peer.handshake((VERSION, 0), (WRONG_ARGUMENTS, 4)))
    peer.wire.frames.clear()
    peer.answers_given = 0
    return peer


# ---- handshake ----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_new_master_takes_tenants_and_tells_its_version() -> None:
    peer = Peer()
    await peer.handshake((VERSION, 0), (WRONG_ARGUMENTS, 4))
    # The question is in the form that a new master refuses before it counts a request.
    assert [frame[1:] for frame in peer.wire.frames] == [
        (SERVICE_READY, b""),
        (BATCH_EXIST_KEY, naive.request([], None)),
    ]
    assert peer.connection.takes_tenant
    assert peer.connection.service is not None
    assert peer.connection.service.version == "2.0.0"
    assert peer.connection.has_room
    peer.ask("key")
    assert peer.wire.frames[-1][1:] == (BATCH_EXIST_KEY, naive.request(["key"], "team-a"))


@pytest.mark.anyio
@pytest.mark.parametrize(("ready", "version"), [(NO_VERSION, None), (VERSION, "2.0.0")])
async def test_an_old_master_takes_no_tenant_and_is_asked_without(ready: bytes, version: str | None) -> None:
    peer = Peer()
    await peer.handshake((ready, 0), (NOTHING_ASKED, 0))
    assert not peer.connection.takes_tenant
    assert peer.connection.service is not None
    assert peer.connection.service.version == version
    peer.ask("key")
    assert peer.wire.frames[-1][1:] == (BATCH_EXIST_KEY, naive.request(["key"], None))


@pytest.mark.anyio
@pytest.mark.parametrize("behind", [(NOTHING_ASKED, 0), (WRONG_ARGUMENTS, 4), None])
async def test_a_master_that_does_not_serve_is_no_connection(behind: tuple[bytes, int] | None) -> None:
    peer = Peer()
    with pytest.raises(ConnectError, match=r"10\.0\.0\.1:50051 is not serving: .*-1010 \(UNAVAILABLE"):
        await peer.handshake((STANDBY, 0), *([behind] if behind else []))
    assert not peer.connection.has_room
    peer.connection.close()


REFUSALS: dict[str, tuple[list[tuple[bytes, int]], type[AioMooncakeError], str]] = {
    "no ServiceReady": ([(naive.string(b"unknown"), 11)], RpcError, r"error 11 \(function_not_registered\): unknown"),
    "no BatchExistKey": ([(VERSION, 0), (naive.string(b"unknown"), 11)], RpcError, "error 11"),
    "a handler that threw": ([(VERSION, 0), (naive.string(b"oops"), 10)], RpcError, "oops"),
    "another type": ([(NOTHING_ASKED, 0)], RemoteProtocolError, "ServiceReady's answer: type hash"),
    "another type of answer": ([(VERSION, 0), (VERSION, 0)], RemoteProtocolError, "BatchExistKey's answer: type hash"),
    "too many answers": ([(VERSION, 0), (naive.answer([True]), 0)], RemoteProtocolError, "answered 1 keys where 0"),
    "an error without words": ([(b"\xff\xff", 11)], RemoteProtocolError, "error message"),
}


@pytest.mark.anyio
@pytest.mark.parametrize(("answers", "kind", "says"), REFUSALS.values(), ids=REFUSALS)
async def test_a_handshake_ends_with_what_the_peer_did(
    answers: list[tuple[bytes, int]], kind: type[AioMooncakeError], says: str
) -> None:
    peer = Peer()
    with pytest.raises(kind, match=says):
        await peer.handshake(*answers)
    assert not peer.connection.has_room
    peer.connection.close()
    assert peer.wire.aborted == 1


@pytest.mark.anyio
@pytest.mark.parametrize("before", [[], [(VERSION, 0)]], ids=["first", "second"])
@pytest.mark.parametrize("why", [None, ConnectionResetError("reset by peer")], ids=repr)
async def test_a_connection_lost_during_the_handshake_ends_it(
    before: list[tuple[bytes, int]], why: Exception | None
) -> None:
    peer = Peer()
    with pytest.raises(ConnectionLostError, match="closed by the master" if why is None else "reset by peer"):
        await peer.handshake(*before, why)
    assert peer.lost == [peer.connection]


@pytest.mark.anyio
async def test_a_peer_that_is_no_master_ends_the_handshake_with_a_hint() -> None:
    peer = Peer()
    task = asyncio.ensure_future(peer.connection.handshake("default"))
    await asyncio.sleep(0)
    peer.connection.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(RemoteProtocolError, match=r"10\.0\.0\.1:50051: .*this port speaks HTTP"):
        await task
    assert peer.wire.aborted == 1


@pytest.mark.anyio
@pytest.mark.parametrize("late", [[], [VERSION], [VERSION, NOTHING_ASKED]], ids=len)
async def test_a_cancelled_handshake_takes_late_answers_and_the_end_quietly(late: list[bytes]) -> None:
    peer = Peer()
    task = asyncio.ensure_future(peer.connection.handshake("default"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for answer in late:
        peer.answer(answer)
    peer.connection.close()
    assert peer.lost == [peer.connection]


@pytest.mark.anyio
async def test_no_call_may_be_sent_before_the_handshake_is_over() -> None:
    peer = Peer(max_in_flight=5)
    assert not peer.connection.has_room
    task = asyncio.ensure_future(peer.connection.handshake("default"))
    await asyncio.sleep(0)
    peer.connection.pause_writing()
    peer.connection.resume_writing()
    assert not peer.connection.has_room
    peer.answer(VERSION)
    assert not peer.connection.has_room
    peer.answer(NOTHING_ASKED)
    await task
    assert peer.connection.has_room
    assert peer.rooms == 0


@pytest.mark.anyio
async def test_a_handshake_on_a_paused_wire_waits_for_room() -> None:
    peer = Peer()
    peer.connection.pause_writing()
    await peer.handshake((VERSION, 0), (NOTHING_ASKED, 0))
    assert not peer.connection.has_room
    peer.connection.resume_writing()
    assert peer.connection.has_room
    assert peer.rooms == 1


# ---- calls --------------------------------------------------------------------------------------------------------


def test_calls_are_answered_in_order_and_counted() -> None:
    peer = established()
    first, second = peer.ask("a", "b", "c"), peer.ask("d")
    assert peer.connection.outstanding_keys == 4
    peer.answer(naive.answer([True, False, True], debug=True))
    assert (first.bits, second.ends, peer.connection.outstanding_keys) == (b"\1\0\1", [], 1)
    peer.answer(naive.answer([False], debug=True))
    assert (second.bits, peer.connection.outstanding_keys) == (b"\0", 0)
    assert len(first.ends) == 1


def test_answers_are_settled_however_they_arrive() -> None:
    peer = established(max_in_flight=4)
    calls = [peer.ask("a") for _ in range(4)]
    stream = b"".join(peer.next_answer(naive.answer([bit], debug=True)) for bit in (True, False, True, False))
    for byte in stream:
        peer.connection.data_received(bytes([byte]))
    assert [call.bits for call in calls] == [b"\1", b"\0", b"\1", b"\0"]


def test_room_ends_at_the_calls_in_flight_and_is_back_before_the_call_is_told() -> None:
    peer = established(max_in_flight=2)
    room_seen: list[bool] = []
    call = peer.ask("a")
    call.on_end = lambda: room_seen.append(peer.connection.has_room)
    assert peer.connection.has_room
    refused = peer.ask("b")
    refused.on_end = lambda: room_seen.append(peer.connection.has_room)
    assert not peer.connection.has_room
    peer.answer(naive.answer([True]))
    peer.answer(naive.string(b"oops"), 10)
    assert room_seen == [True, True]
    assert peer.rooms == 0


def test_a_call_that_asks_again_at_once_takes_the_next_place() -> None:
    peer = established(max_in_flight=1)
    call = peer.ask("a")
    following: list[Asked] = []
    call.on_end = lambda: following.append(peer.ask("b"))
    peer.answer(naive.answer([True]))
    assert not peer.connection.has_room
    peer.answer(naive.answer([False]))
    assert (call.bits, following[0].bits) == (b"\1", b"\0")


def test_errors_per_key_are_answers() -> None:
    peer = established()
    call = peer.ask("a", "b")
    peer.answer(naive.answer([-600, True], debug=True))
    assert call.ends == [Reply(b"\2\1", {0: -600})]
    assert not peer.lost


@pytest.mark.parametrize("code", [1, 4, 10, 11, 14, 200])
def test_an_rpc_error_fails_its_call_and_no_other(code: int) -> None:
    peer = established()
    first, second = peer.ask("a"), peer.ask("b")
    peer.answer(naive.string(b"why"), code)
    peer.answer(naive.answer([True]))
    assert isinstance(first.error, RpcError)
    assert (first.error.code, first.error.detail) == (code, "why")
    assert second.bits == b"\1"
    assert not peer.lost


@pytest.mark.parametrize("key", [None, 1, "\ud800", bytearray(b"x")], ids=repr)
def test_a_key_that_cannot_be_sent_takes_no_slot(key: Any) -> None:
    peer = established(max_in_flight=1)
    with pytest.raises(InvalidKeyError):
        peer.ask("good", key)
    assert (peer.wire.frames, peer.connection.outstanding_keys, peer.connection.has_room) == ([], 0, True)
    call = peer.ask("good")
    peer.answer(naive.answer([True]))
    assert call.bits == b"\1"


def test_the_longest_answers_that_can_be_asked_for_are_taken() -> None:
    count = MAX_MESSAGE  # its error codes alone are more bytes than any message
    peer = established(max_batch_keys=count)
    call = peer.ask(*["k"] * count)
    body = naive.answer([-600] * count, width=8, debug=True)
    assert MAX_MESSAGE < len(body) <= largest_batch_exist_answer(count)
    peer.answer(body)
    assert call.bits == b"\2" * count


# ---- flow control -------------------------------------------------------------------------------------------------


def test_a_paused_wire_has_no_room_and_says_when_it_has() -> None:
    peer = established()
    peer.connection.pause_writing()
    assert not peer.connection.has_room
    peer.connection.resume_writing()
    assert peer.connection.has_room
    assert peer.rooms == 1


def test_a_wire_that_pauses_during_the_write_has_no_room_after_it() -> None:
    peer = established(max_in_flight=4)
    peer.wire.on_write = peer.connection.pause_writing
    call = peer.ask("a")
    assert not peer.connection.has_room
    peer.answer(naive.answer([True]))
    assert call.bits == b"\1"
    assert not peer.connection.has_room, "an answer does not mean that the wire takes more"
    peer.connection.resume_writing()
    assert (peer.connection.has_room, peer.rooms) == (True, 1)


def test_a_wire_that_resumes_with_all_slots_taken_says_nothing() -> None:
    peer = established(max_in_flight=1)
    peer.ask("a")
    peer.connection.pause_writing()
    peer.connection.resume_writing()
    assert (peer.connection.has_room, peer.rooms) == (False, 0)
    peer.answer(naive.answer([True]))
    assert peer.connection.has_room


# ---- the end ------------------------------------------------------------------------------------------------------

ENDS: dict[str, tuple[Callable[[Connection], None], type[AioMooncakeError], str]] = {
    "closed by us": (lambda c: c.close(), ClosedError, "the engine was closed"),
    "closed by the master": (lambda c: c.connection_lost(None), ConnectionLostError, "closed by the master"),
    "reset": (lambda c: c.connection_lost(ConnectionResetError("reset")), ConnectionLostError, ": reset"),
    "lost without words": (lambda c: c.connection_lost(BrokenPipeError()), ConnectionLostError, ": BrokenPipeError"),
    "garbage": (lambda c: c.data_received(b"garbage"), RemoteProtocolError, "not a coro_rpc answer"),
    "out of order": (lambda c: c.data_received(naive.frame(99, b"")), RemoteProtocolError, "answer 99 where 3 is"),
    "over the cap": (
        lambda c: c.data_received(struct.pack("<IIII", 0x15, 3, 2**31, 0)),
        RemoteProtocolError,
        "announces 2147483648 bytes",
    ),
}


@pytest.mark.parametrize(("end", "kind", "says"), ENDS.values(), ids=ENDS)
def test_every_end_settles_every_call_once(
    end: Callable[[Connection], None], kind: type[AioMooncakeError], says: str
) -> None:
    peer = established(max_in_flight=5)
    calls = [peer.ask("a") for _ in range(4)]
    end(peer.connection)
    assert [type(call.error) for call in calls] == [kind] * 4
    assert says in str(calls[0].error)
    if kind is not ClosedError:
        assert "10.0.0.1:50051" in str(calls[0].error)
    assert (peer.lost, peer.wire.aborted, peer.connection.has_room) == ([peer.connection], 1, False)

    for again, _, _ in ENDS.values():
        again(peer.connection)
    peer.connection.pause_writing()
    peer.connection.resume_writing()
    assert [len(call.ends) for call in calls] == [1] * 4
    assert (len(peer.lost), peer.wire.aborted, peer.connection.has_room, peer.rooms) == (1, 1, False, 0)


def test_an_end_keeps_its_cause() -> None:
    peer = established()
    call = peer.ask("a")
    cause = ConnectionResetError("reset")
    peer.connection.connection_lost(cause)
    assert call.error.__cause__ is cause


def test_an_end_with_nothing_out_is_only_told() -> None:
    peer = established()
    peer.connection.connection_lost(None)
    assert (peer.lost, peer.connection.has_room) == ([peer.connection], False)


def test_others_take_the_place_of_a_lost_connection_before_its_calls_are_told() -> None:
    peer = established()
    order: list[str] = []
    peer.on_lost = lambda: order.append("lost")
    for name in "ab":
        peer.ask(name).on_end = lambda name=name: order.append(name)  # type: ignore[misc]
    peer.connection.connection_lost(None)
    assert order == ["lost", "a", "b"]


def test_a_call_that_asks_again_when_it_fails_finds_no_room_here() -> None:
    peer = established()
    room: list[bool] = []
    for name in "ab":
        peer.ask(name).on_end = lambda: room.append(peer.connection.has_room)
    peer.connection.connection_lost(None)
    assert room == [False, False]


def test_a_call_that_closes_the_connection_when_answered_ends_the_others_once() -> None:
    peer = established(max_in_flight=3)
    calls = [peer.ask("a") for _ in range(3)]
    calls[0].on_end = peer.connection.close
    peer.connection.data_received(b"".join(peer.next_answer(naive.answer([True])) for _ in range(3)))
    assert calls[0].bits == b"\1"
    assert [type(call.error) for call in calls[1:]] == [ClosedError] * 2
    assert (len(peer.lost), peer.wire.aborted) == (1, 1)


def test_data_after_the_end_changes_nothing() -> None:
    peer = established()
    call = peer.ask("a")
    late = peer.next_answer(naive.answer([True]))
    peer.connection.close()
    for piece in (late, late[:10], late[10:], b"garbage"):
        peer.connection.data_received(piece)
    assert isinstance(call.error, ClosedError)
    assert (len(peer.lost), peer.wire.aborted) == (1, 1)


BROKEN: dict[str, tuple[bytes, int]] = {
    "another type": (VERSION, 0),
    "too few": (naive.answer([True]), 0),
    "too many": (naive.answer([True] * 3), 0),
    "cut short": (naive.answer([True, True])[:-1], 0),
    "neither hit nor miss": (naive.header(naive.RESULTS, 1) + b"\2\1\1\1\2", 0),
    "an error without words": (b"", 10),
    "an error of another type": (naive.answer([True, True]), 10),
    "an error cut short": (naive.string(b"oops")[:-1], 4),
}


@pytest.mark.parametrize(("body", "error"), BROKEN.values(), ids=BROKEN)
def test_an_answer_that_cannot_be_read_ends_its_call_and_all_behind_it(body: bytes, error: int) -> None:
    peer = established(max_in_flight=5)
    before, broken, *behind = peer.ask("a"), peer.ask("b", "c"), peer.ask("d"), peer.ask("e")
    room: list[bool] = []
    broken.on_end = lambda: room.append(peer.connection.has_room)
    good = peer.next_answer(naive.answer([True]))
    bad = peer.next_answer(body, error)
    peer.connection.data_received(good + bad + peer.next_answer(naive.answer([True])))
    assert before.bits == b"\1"
    for call in (broken, *behind):
        assert isinstance(call.error, RemoteProtocolError)
        assert str(call.error).startswith("10.0.0.1:50051: ")
        assert str(call.error).count("10.0.0.1:50051") == 1
    assert room == [False]
    assert (peer.lost, peer.wire.aborted) == ([peer.connection], 1)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(1, 3).map(lambda count: ("ask", count)),
            st.sampled_from([("answer", 0), ("rpc error", 0), ("pause", 0), ("resume", 0), ("close", 0), ("lost", 0)]),
            st.binary(min_size=1, max_size=20).map(lambda garbage: ("garbage", garbage)),
        ),
        max_size=30,
    )
)
def test_whatever_happens_every_call_ends_once_and_room_is_told_truly(script: list[tuple[str, Any]]) -> None:
    peer = established(max_in_flight=3)
    calls: list[Asked] = []
    answered = paused = 0
    over = False
    for what, detail in script:
        if what == "ask" and peer.connection.has_room:
            calls.append(peer.ask(*["k"] * detail))
        elif what in ("answer", "rpc error") and not over and answered < len(calls):
            if what == "answer":
                peer.answer(naive.answer([True] * len(calls[answered].keys)))
            else:
                peer.answer(naive.string(b"oops"), 10)
            answered += 1
        elif what == "pause":
            peer.connection.pause_writing()
            paused = True
        elif what == "resume":
            peer.connection.resume_writing()
            paused = False
        elif what == "close":
            peer.connection.close()
            over = True
        elif what == "lost":
            peer.connection.connection_lost(None)
            over = True
        elif what == "garbage":
            peer.connection.data_received(b"\xff" + detail)
            over = True
        in_flight = 0 if over else len(calls) - answered
        assert [len(call.ends) for call in calls] == [1] * (len(calls) - in_flight) + [0] * in_flight
        assert peer.connection.has_room == (not over and not paused and in_flight < 3)
        assert len(peer.lost) == peer.wire.aborted == over
    peer.connection.close()
    assert all(len(call.ends) == 1 for call in calls)


# ---- which connection is quick -----------------------------------------------------------------------------------


def test_the_latency_of_small_lone_calls_is_known_down_at_once_and_up_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("aiomooncake.transport.connection.perf_counter", lambda: now)
    peer = established()
    seen = []
    for took, keys in ((8.0, 1), (4.0, 1), (20.0 + 511 * 0.5e-6, 512)):  # what the keys themselves cost does not count
        peer.ask(*map(str, range(keys)))
        now += took
        peer.answer(naive.answer([False] * keys))
        seen.append(peer.connection.lone_latency)
    assert seen == pytest.approx([8.0, 4.0, 5.0])
    # Neither a large call nor one behind another says how quick the connection is.
    peer.ask(*map(str, range(513)))
    peer.ask("key")
    now += 1000.0
    peer.answer(naive.answer([False] * 513))
    peer.answer(naive.answer([False]))
    assert peer.connection.lone_latency == pytest.approx(5.0)
