from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiomooncake.errors import RemoteProtocolError
from aiomooncake.transport.session import Session
from aiomooncake.wire.coro_rpc import Frame, encode_request

from ..wire import naive

FUNCTION = 0xB89FA6B0


def asked(*tokens: str) -> Session[str]:
    session: Session[str] = Session(1000)
    for token in tokens:
        session.request(FUNCTION, token.encode(), token)
    return session


def test_requests_are_numbered_in_order_and_framed() -> None:
    session: Session[str] = Session(1000)
    frames = [session.request(FUNCTION, body, "token") for body in (b"one", b"", b"three")]
    first = struct.unpack_from("<I", frames[0], 4)[0]
    assert frames == [encode_request(first + i, FUNCTION, body) for i, body in enumerate((b"one", b"", b"three"))]
    assert len(session) == 3


def test_answers_come_with_the_tokens_of_their_requests_in_order() -> None:
    session = asked("a", "b", "c")
    assert list(session.receive(naive.frame(1, b"A") + naive.frame(2, b"B", 4))) == [
        ("a", Frame(1, 0, b"A")),
        ("b", Frame(2, 4, b"B")),
    ]
    assert len(session) == 1
    assert list(session.receive(naive.frame(3, b"C"))) == [("c", Frame(3, 0, b"C"))]
    assert len(session) == 0


def test_requests_and_answers_may_alternate_and_pile_up() -> None:
    session = asked()
    seq = 0
    for round_ in range(1, 20):
        for turn in range(round_):
            session.request(FUNCTION, b"", f"{round_}/{turn}")
        answers = b"".join(naive.frame(seq + turn + 1, b"") for turn in range(round_))
        seq += round_
        assert [token for token, _ in session.receive(answers)] == [f"{round_}/{turn}" for turn in range(round_)]


def test_the_number_is_used_up_and_the_place_kept_only_by_requests_that_were_made() -> None:
    session = asked("a")
    assert list(session.receive(naive.frame(1, b""))) == [("a", Frame(1, 0, b""))]
    assert struct.unpack_from("<I", session.request(FUNCTION, b"", "b"), 4) == (2,)


@pytest.mark.parametrize("seq", [0, 2, 3, 2**32 - 1])
def test_an_answer_that_is_not_the_next_one_is_refused(seq: int) -> None:
    session = asked("a", "b", "c")
    with pytest.raises(RemoteProtocolError, match=f"answer {seq} where 1 is next"):
        list(session.receive(naive.frame(seq, b"")))
    assert session.abandon() == ["a", "b", "c"]


def test_an_answer_given_twice_is_refused_behind_the_first() -> None:
    session = asked("a", "b")
    receiving = session.receive(naive.frame(1, b"") * 2)
    assert next(receiving) == ("a", Frame(1, 0, b""))
    with pytest.raises(RemoteProtocolError, match="answer 1 where 2 is next"):
        next(receiving)
    assert session.abandon() == ["b"]


def test_an_answer_to_nothing_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="answer 1 to nothing that was asked"):
        list(asked().receive(naive.frame(1, b"")))
    session = asked("a")
    list(session.receive(naive.frame(1, b"")))
    with pytest.raises(RemoteProtocolError, match="answer 2 to nothing that was asked"):
        list(session.receive(naive.frame(2, b"")))


def test_numbers_wrap_at_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    session = asked()
    monkeypatch.setattr(session, "_seq", 2**32 - 3)
    frames = [session.request(FUNCTION, b"", token) for token in "abcd"]
    numbers = [struct.unpack_from("<I", frame, 4)[0] for frame in frames]
    assert numbers == [2**32 - 2, 2**32 - 1, 0, 1]
    answers = b"".join(naive.frame(number, b"") for number in numbers)
    assert [token for token, _ in session.receive(answers)] == list("abcd")


def test_abandon_gives_back_what_is_unanswered_once() -> None:
    session = asked("a", "b", "c")
    list(session.receive(naive.frame(1, b"")))
    assert session.abandon() == ["b", "c"]
    assert session.abandon() == []
    assert len(session) == 0


def test_answers_after_abandon_are_to_nothing() -> None:
    session = asked("a")
    session.abandon()
    with pytest.raises(RemoteProtocolError, match="to nothing"):
        list(session.receive(naive.frame(1, b"")))


def test_a_session_abandoned_while_it_is_read_yields_no_more() -> None:
    session = asked("a", "b")
    receiving = session.receive(naive.frame(1, b"") + naive.frame(2, b""))
    assert next(receiving)[0] == "a"
    assert session.abandon() == ["b"]
    with pytest.raises(RemoteProtocolError, match="to nothing"):
        next(receiving)


def test_a_request_made_while_answers_are_read_takes_the_next_place() -> None:
    session = asked("a", "b")
    tokens = []
    for token, _ in session.receive(naive.frame(1, b"") + naive.frame(2, b"")):
        tokens.append(token)
        session.request(FUNCTION, b"", token * 2)
    assert tokens == ["a", "b"]
    assert session.abandon() == ["aa", "bb"]


def test_an_answer_over_the_cap_is_refused() -> None:
    session = asked("a")
    with pytest.raises(RemoteProtocolError, match="the cap is 1000"):
        list(session.receive(naive.frame(1, bytes(1001))))


@settings(deadline=None)
@given(st.lists(st.one_of(st.just("ask"), st.integers(0, 3)), max_size=40), st.integers(1, 40))
def test_any_talk_gives_each_answer_to_the_request_in_its_place_or_ends(talk: list[str | int], size: int) -> None:
    """An integer answers with the number that far behind the next one expected: 0 is right."""
    session, asked_so_far, answered, expected = asked(), 0, list[str](), list[str]()
    for step in talk:
        if step == "ask":
            asked_so_far += 1
            session.request(FUNCTION, b"", str(asked_so_far))
            continue
        assert isinstance(step, int)
        stream = naive.frame(len(answered) + 1 + step, b"%d" % step)
        right = step == 0 and len(answered) < asked_so_far
        try:
            for at in range(0, len(stream), size):
                answered += [token for token, _ in session.receive(stream[at : at + size])]
        except RemoteProtocolError:
            assert not right
            break
        assert right
        expected.append(str(len(expected) + 1))
    assert answered == expected
    assert session.abandon() == [str(number) for number in range(len(answered) + 1, asked_so_far + 1)]
