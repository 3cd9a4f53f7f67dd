"""Damage is noticed: else the chaos program would blame the engine for what nobody can see."""

from __future__ import annotations

from random import Random

from aiomooncake.errors import RemoteProtocolError
from aiomooncake.transport.session import Session
from aiomooncake.wire.messages import (
    BATCH_EXIST_KEY,
    MAX_MESSAGE,
    decode_batch_exist,
    decode_error_message,
)

from ..wire import naive
from .garble import Garbler, garbage

COUNTS = (1, 3, 21, 300)
ANSWERS = {count: naive.answer([number % 3 == 0 for number in range(count)], debug=True) for count in COUNTS}


def answers_taken_from(data: bytes) -> int:
    """How many answers a client takes from what a master is said to have sent, until it notices something."""
    session: Session[int] = Session(MAX_MESSAGE)
    for count in COUNTS:
        session.request(BATCH_EXIST_KEY, b"", count)
    taken = 0
    try:
        for count, frame in session.receive(data):
            if frame.error:
                decode_error_message(frame.body)
            else:
                reply = decode_batch_exist(frame.body, count)
                assert (reply.bits, reply.errors) == (bytes(number % 3 == 0 for number in range(count)), {})
                taken += 1
    except RemoteProtocolError:
        pass
    return taken


FRAMES = [naive.frame(seq, ANSWERS[count]) for seq, count in enumerate(COUNTS, 1)]


def test_undamaged_answers_are_taken() -> None:
    assert answers_taken_from(b"".join(FRAMES)) == len(COUNTS)


def test_no_damaged_answer_is_taken() -> None:
    garbler = Garbler(Random(1))
    data = b"".join(FRAMES)
    for _ in range(2000):
        garbled = garbler.garbled
        damaged = garbler(data)
        if garbler.garbled > garbled:
            assert answers_taken_from(damaged) < len(COUNTS)
        else:
            assert damaged == data
    assert garbler.garbled > 500


def test_garbage_between_any_two_bytes_is_no_answer() -> None:
    rng = Random(1)
    data = b"".join(FRAMES)
    for place in range(len(data)):
        assert answers_taken_from(data[:place] + garbage(rng) + data[place:]) < len(COUNTS)


def test_what_is_not_made_of_whole_frames_is_passed_on_as_it_is() -> None:
    garbler = Garbler(Random(0))
    for piece in (FRAMES[3][:100], FRAMES[3][5:], FRAMES[0] + FRAMES[1][:30]):
        assert all(garbler(piece) == piece for _ in range(20))
