from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiomooncake.errors import RemoteProtocolError
from aiomooncake.wire import coro_rpc
from aiomooncake.wire.coro_rpc import MAX_REQUEST_BODY, Frame, FrameDecoder, encode_request, function_id

from . import naive

if TYPE_CHECKING:
    from collections.abc import Iterable

CAP = 1000
HEADER = 16

FRAMES = {
    "empty": (naive.frame(0, b""), Frame(0, 0, b"")),
    "one byte": (naive.frame(1, b"a"), Frame(1, 0, b"a")),
    "highest seq": (naive.frame(2**32 - 1, b"xyz"), Frame(2**32 - 1, 0, b"xyz")),
    "error": (naive.frame(3, naive.string(b"no such function"), 11), Frame(3, 11, naive.string(b"no such function"))),
    "unknown error": (naive.frame(4, b"?", 255), Frame(4, 255, b"?")),
    "body like a header": (naive.frame(5, naive.frame(6, b"")), Frame(5, 0, naive.frame(6, b""))),
    "body like a TLS alert": (naive.frame(7, b"\x15\x03\x01"), Frame(7, 0, b"\x15\x03\x01")),
    "longest": (naive.frame(8, b"z" * CAP), Frame(8, 0, b"z" * CAP)),
}
every_frame = pytest.mark.parametrize(("raw", "frame"), FRAMES.values(), ids=FRAMES)


def decode(pieces: Iterable[bytes], cap: int = CAP) -> tuple[list[Frame], RemoteProtocolError | None]:
    """Feed the pieces until an error; what the decoder holds is checked after each."""
    decoder, frames = FrameDecoder(cap), list[Frame]()
    try:
        for piece in pieces:
            for frame in decoder.feed(piece):
                assert len(frame.body) <= cap
                frames.append(frame)
            assert decoder.buffered < HEADER + cap
    except RemoteProtocolError as error:
        return frames, error
    return frames, None


def refusal(*pieces: bytes) -> str:
    frames, error = decode(pieces)
    assert not frames
    assert error is not None
    return str(error)


# ---- requests -----------------------------------------------------------------------------------------------------


def test_function_ids_come_from_the_name() -> None:
    assert function_id("mooncake::WrappedMasterService::BatchExistKey") == 0xB89FA6B0


def test_a_request_is_its_header_and_its_body() -> None:
    frame = encode_request(0x01020304, 0xA0B0C0D0, b"body")
    assert frame == bytes.fromhex("15000000 04030201 d0c0b0a0 04000000 00000000") + b"body"


@pytest.mark.parametrize("seq", [0, 1, 2**31, 2**32 - 1])
def test_every_seq_can_be_sent(seq: int) -> None:
    assert struct.unpack_from("<I", encode_request(seq, 0, b""), 4) == (seq,)


def test_the_longest_body_is_what_its_length_field_can_say() -> None:
    assert MAX_REQUEST_BODY == 2**32 - 1


# ---- responses, however they arrive -------------------------------------------------------------------------------


@every_frame
def test_a_frame_is_decoded_whole(raw: bytes, frame: Frame) -> None:
    assert decode([raw]) == ([frame], None)


@every_frame
def test_a_frame_is_decoded_one_byte_at_a_time(raw: bytes, frame: Frame) -> None:
    assert decode(bytes([byte]) for byte in raw) == ([frame], None)


@every_frame
def test_a_frame_is_decoded_wherever_it_is_cut(raw: bytes, frame: Frame) -> None:
    for at in range(len(raw) + 1):
        assert decode([raw[:at], raw[at:]]) == ([frame], None)


@every_frame
def test_what_follows_a_frame_waits_for_its_rest(raw: bytes, frame: Frame) -> None:
    following, expected = FRAMES["body like a header"]
    for at in range(len(following)):
        decoder = FrameDecoder(CAP)
        assert list(decoder.feed(raw + following[:at])) == [frame]
        assert decoder.buffered == at
        assert list(decoder.feed(following[at:] + raw)) == [expected, frame]
        assert decoder.buffered == 0


@every_frame
def test_an_incomplete_frame_is_asked_for_and_not_guessed(raw: bytes, frame: Frame) -> None:
    for length in range(len(raw)):
        decoder = FrameDecoder(CAP)
        assert list(decoder.feed(raw[:length])) == []
        assert decoder.buffered == length


def test_many_frames_in_one_piece_come_in_order() -> None:
    stream = b"".join(raw for raw, _ in FRAMES.values()) * 50
    assert decode([stream]) == ([frame for _, frame in FRAMES.values()] * 50, None)


def test_empty_pieces_change_nothing() -> None:
    raw, frame = FRAMES["error"]
    assert decode([b"", raw[:9], b"", raw[9:], b""]) == ([frame], None)


def test_frames_are_yielded_before_what_comes_behind_them_is_judged() -> None:
    feeding = FrameDecoder(CAP).feed(naive.frame(1, b"good") + b"garbage, and more of it")
    assert next(feeding) == Frame(1, 0, b"good")
    with pytest.raises(RemoteProtocolError, match="garbage"):
        next(feeding)


@settings(deadline=None)
@given(st.lists(st.sampled_from(list(FRAMES.values())), max_size=8), st.data())
def test_any_cutting_of_a_stream_yields_the_same_frames(chosen: list[tuple[bytes, Frame]], data: st.DataObject) -> None:
    stream = b"".join(raw for raw, _ in chosen)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decode(pieces) == ([frame for _, frame in chosen], None)


def test_a_long_frame_in_many_pieces_is_copied_once_and_not_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = 0

    def counting(data: bytearray) -> bytes:
        nonlocal copied
        copied += len(data)
        return bytes(data)

    monkeypatch.setattr(coro_rpc, "bytes", counting, raising=False)
    raw = naive.frame(1, bytes(100_000))
    frames, _ = decode((raw[at : at + 100] for at in range(0, len(raw), 100)), cap=100_000)
    assert len(frames) == 1
    assert copied <= len(raw) + 100


# ---- peers that are no master -------------------------------------------------------------------------------------


def with_byte(position: int, value: int) -> bytes:
    raw = bytearray(naive.frame(1, b"body"))
    raw[position] = value
    return bytes(raw)


@pytest.mark.parametrize("value", [0x00, 0x14, 0x16, 0x51, 0xFF])
def test_another_magic_is_refused_at_its_first_byte(value: int) -> None:
    assert "not a coro_rpc answer" in refusal(with_byte(0, value)[:1])


@pytest.mark.parametrize("value", [1, 2, 3, 255])
def test_another_version_is_refused_at_its_first_byte(value: int) -> None:
    assert "not a coro_rpc answer" in refusal(b"\x15", bytes([value]))
    assert "not a coro_rpc answer" in refusal(with_byte(1, value))


@pytest.mark.parametrize("value", [1, 255])
def test_another_message_type_is_refused(value: int) -> None:
    assert "not a coro_rpc answer" in refusal(with_byte(3, value)[:HEADER])


@pytest.mark.parametrize("length", [CAP + 1, 2**31, 2**32 - 1])
def test_a_body_over_the_cap_is_refused_before_any_of_it_arrives(length: int) -> None:
    header = struct.pack("<IIII", 0x15, 7, length, 0)
    for pieces in ([header], [header[:5], header[5:]], [bytes([byte]) for byte in header]):
        assert refusal(*pieces) == f"answer 7 announces {length} bytes; the cap is {CAP}"


@pytest.mark.parametrize("attachment", [1, 2**32 - 1])
def test_an_attachment_is_refused(attachment: int) -> None:
    assert refusal(struct.pack("<IIII", 0x15, 7, 0, attachment)) == (
        f"answer 7 announces an attachment of {attachment} bytes; lookups have none"
    )


def test_with_a_cap_of_nothing_only_empty_bodies_pass() -> None:
    assert decode([naive.frame(1, b"")], cap=0) == ([Frame(1, 0, b"")], None)
    assert decode([naive.frame(1, b"x")], cap=0)[1] is not None


PEERS = {
    "http": (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "speaks HTTP"),
    "html": (b"<html><body>no</body></html>", "speaks HTTP"),
    "tls alert": (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS"),
    "tls handshake": (b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + bytes(100), "speaks TLS"),
    "redis": (b"-ERR unknown command\r\n", "is this the RPC port of a mooncake_master?"),
    "ssh": (b"SSH-2.0-OpenSSH_9.6\r\n", "is this the RPC port of a mooncake_master?"),
    "short": (b"\n", "is this the RPC port of a mooncake_master?"),
}


@pytest.mark.parametrize(("says", "hint"), PEERS.values(), ids=PEERS)
def test_another_service_is_named_whole_and_byte_by_byte(says: bytes, hint: str) -> None:
    assert hint in refusal(says)
    assert hint in refusal(*(bytes([byte]) for byte in says))
    for at in range(1, len(says)):
        assert hint in refusal(says[:at], says[at:])


@pytest.mark.parametrize(("says", "hint"), PEERS.values(), ids=PEERS)
def test_good_frames_before_garbage_are_not_lost(says: bytes, hint: str) -> None:
    good = [FRAMES["one byte"], FRAMES["error"]]
    stream = b"".join(raw for raw, _ in good) + says
    for pieces in ([stream], [stream[:20], stream[20:]], [bytes([byte]) for byte in stream]):
        frames, error = decode(pieces)
        assert frames == [frame for _, frame in good]
        assert hint in str(error)


def test_what_is_told_of_a_peer_that_talks_much_is_short() -> None:
    assert len(refusal(b"x" * 1_000_000)) < 200


# ---- anything at all ----------------------------------------------------------------------------------------------

headers = st.builds(
    lambda start, seq, length, attachment: start + struct.pack("<III", seq, length, attachment),
    st.one_of(st.just(b"\x15\0\0\0"), st.binary(min_size=4, max_size=4)),
    st.integers(0, 2**32 - 1),
    st.one_of(st.integers(0, 40), st.sampled_from([CAP - 1, CAP, CAP + 1]), st.integers(0, 2**32 - 1)),
    st.one_of(st.just(0), st.integers(0, 2**32 - 1)),
)
streams = st.lists(
    st.one_of(headers, st.binary(max_size=60), st.sampled_from([raw for raw, _ in FRAMES.values()])), max_size=6
).map(b"".join)


@settings(deadline=None, max_examples=500)
@given(streams, st.integers(1, 40))
def test_any_bytes_yield_frames_ask_for_more_or_are_refused_alike_however_cut(stream: bytes, size: int) -> None:
    whole, error = decode([stream])
    cut, cut_error = decode(stream[at : at + size] for at in range(0, len(stream), size))
    assert cut == whole
    assert (cut_error is None) == (error is None)
    consumed = b"".join(naive.frame(frame.seq, frame.body, frame.error) for frame in whole)
    assert stream.startswith(consumed)


def test_a_peer_cannot_make_the_decoder_hold_more_than_the_cap() -> None:
    cap = 200_000
    raw = naive.frame(1, bytes(cap))
    pieces = [raw[at : at + 1000] for at in range(0, len(raw), 1000)]
    decoder, frames = FrameDecoder(cap), 0
    tracemalloc.start()
    try:
        for piece in pieces * 5:
            for _ in decoder.feed(piece):
                frames += 1
            assert decoder.buffered < HEADER + cap
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert frames == 5
    # The frame as it gathers, with the room a bytearray keeps in hand; the whole of it; its body.
    assert peak < 4 * cap
