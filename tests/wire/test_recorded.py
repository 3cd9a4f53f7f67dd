"""The codec against recorded frames: a fake built on our own codec would share its mistakes."""

from __future__ import annotations

import pytest

from aiomooncake.reply import ERROR
from aiomooncake.wire.coro_rpc import FrameDecoder, encode_request
from aiomooncake.wire.messages import BATCH_EXIST_KEY, BatchExistEncoder, decode_batch_exist, largest_batch_exist_answer

from . import naive, recorded

every_call = pytest.mark.parametrize("call", recorded.calls(), ids=str)


def as_debug_build(body: bytes, type_string: bytes) -> bytes:
    """Put the meta byte and type string in, which the recorded client writes and we leave out."""
    hash_, rest = int.from_bytes(body[:4], "little"), body[4:]
    meta = 0
    if hash_ & 1:
        meta, rest = rest[0], rest[1:]
    return (hash_ | 1).to_bytes(4, "little") + bytes([meta | 0b100]) + type_string + b"\0" + rest


def response_of(call: recorded.Call) -> bytes:
    """The recorded response; one too long to be kept is made anew and compared by its hash."""
    if call.response.kept is not None:
        return call.response.kept
    answers = [bool(answer) if answer in (0, 1) else answer for answer in call.answers]
    frame = naive.frame(call.seq, naive.answer(answers, debug=True))
    assert call.response.is_of(frame)
    return frame


@every_call
def test_our_request_is_the_recorded_one_but_for_the_type_string(call: recorded.Call) -> None:
    type_string = naive.KEYS if call.tenant is None else naive.KEYS_AND_TENANT
    body = as_debug_build(BatchExistEncoder(call.tenant).encode(call.keys), type_string)
    frame = encode_request(call.seq, BATCH_EXIST_KEY, body)
    assert call.request.kept in (frame, None)
    assert call.request.is_of(frame)


@every_call
def test_keys_given_as_bytes_make_the_same_request(call: recorded.Call) -> None:
    encoder = BatchExistEncoder(call.tenant)
    assert encoder.encode([key.encode() for key in call.keys]) == encoder.encode(call.keys)


@every_call
def test_the_recorded_response_reads_as_the_official_client_read_it(call: recorded.Call) -> None:
    count = len(call.keys)
    (frame,) = FrameDecoder(largest_batch_exist_answer(count)).feed(response_of(call))
    assert (frame.seq, frame.error) == (call.seq, 0)
    reply = decode_batch_exist(frame.body, count)
    assert tuple(reply.errors.get(position, bit) for position, bit in enumerate(reply.bits)) == call.answers
    assert {position for position, bit in enumerate(reply.bits) if bit == ERROR} == set(reply.errors)


def test_recorded_responses_read_the_same_in_one_stream_however_it_is_cut() -> None:
    small = [call for call in recorded.calls() if call.response.length < 1200]
    stream = b"".join(map(response_of, small))
    for size in (1, 7, 16, 17, 1000, len(stream)):
        decoder = FrameDecoder(4096)
        frames = [frame for at in range(0, len(stream), size) for frame in decoder.feed(stream[at : at + size])]
        assert [frame.seq for frame in frames] == [call.seq for call in small]
        assert [naive.frame(frame.seq, frame.body) for frame in frames] == [response_of(call) for call in small]
        assert decoder.buffered == 0


def test_the_recordings_cover_masters_of_both_signatures_and_every_answer() -> None:
    calls = recorded.calls()
    assert {call.master for call in calls} == {"0.3.7.post2", "0.3.9", "0.3.11.post1", "0.3.13.post1"}
    assert {call.tenant for call in calls} == {None, "default", "tenant-a", "_bad"}
    assert {answer for call in calls for answer in call.answers} == {0, 1, -600}
