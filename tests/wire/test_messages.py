from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiomooncake.errors import InvalidKeyError, LocalProtocolError, RemoteProtocolError
from aiomooncake.reply import ERROR, Reply
from aiomooncake.wire import messages
from aiomooncake.wire.messages import (
    BatchExistEncoder,
    ServiceReady,
    check_keys,
    decode_batch_exist,
    decode_error_message,
    decode_service_ready,
    largest_batch_exist_answer,
)

from . import naive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TENANTS = (None, "", "default", "team-a", "mañana", "t" * 255, "t" * 256, "t" * 300, "t" * 65535, "t" * 65536)


def encode(keys: Sequence[str | bytes], tenant: str | None = None) -> bytes:
    return BatchExistEncoder(tenant).encode(keys)


class Name(str):
    __slots__ = ()


class Raw(bytes):
    __slots__ = ()


# ---- questions ----------------------------------------------------------------------------------------------------

KEYS: dict[str, list[str | bytes]] = {
    "none": [],
    "one": ["hello"],
    "an empty one": [""],
    "only empty ones": ["", "", ""],
    "an empty one among others": ["a", "", "b"],
    "duplicates": ["a", "a", "b", "a"],
    "bytes": [b"hello", b"\0\xff\xfe", b""],
    "mixed": ["hello", b"hello", "é", b"\xe9"],
    "bytes last": ["a", "b", b"c"],
    "latin-1 range": ["é", "ÿ", "\x80", "\xff" * 3],
    "latin-1 range, one length": ["éa", "aé"],
    "emoji": ["🚀", "a🚀b"],
    "nul": ["\0", "a\0b", "\0\0"],
    "control characters": ["new\nline", "\x7f", "\x15\0"],
    "subclasses": [Name("name"), Raw(b"raw"), np.str_("numpy"), np.bytes_(b"numpy")],
    "one of one subclass": [Name("name")],
    "characters that take more bytes than they count": ["é" * 128, "x" * 128],
    "1 MB": ["m" * 1_000_000],
    "1 MB of two-byte characters": ["é" * 500_000, "x"],
    "sha256 in hex": [f"{i:064x}_0_k" for i in range(300)],
    "lengths around the widths": ["x" * n for n in (0, 1, 127, 128, 254, 255)],
    **{f"{n} of one length": [f"{i:06}" for i in range(n)] for n in (127, 128, 254, 255, 256, 257, 65535, 65536)},
    **{f"{n} of two lengths": [str(i) for i in range(n)] for n in (254, 255, 256, 65535, 65536)},
    **{f"of length {n}": ["k" * n] for n in (127, 128, 254, 255, 256, 257, 65534, 65535, 65536)},
    **{f"two of length {n}": ["k" * n, "q" * n] for n in (127, 128, 254, 255, 256, 65535, 65536)},
    **{f"of lengths {n} and 1": ["k" * n, "k"] for n in (127, 128, 255, 256, 65535, 65536)},
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_questions_are_written_as_described_for_every_tenant(keys: list[str | bytes]) -> None:
    for tenant in TENANTS:
        assert encode(keys, tenant) == naive.request(keys, tenant)


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_every_way_to_write_a_question_gives_the_same_bytes(keys: list[str | bytes]) -> None:
    raw = [key if isinstance(key, bytes) else key.encode() for key in keys]
    for tenant in (None, "default", "t" * 300):
        written = encode(keys, tenant)
        assert encode(raw, tenant) == written
        assert encode(tuple(keys), tenant) == written
        if all(key.isascii() for key in raw):
            texts = [key.decode() for key in raw]
            assert encode(texts, tenant) == written
            assert encode([*texts[:-1], *raw[-1:]], tenant) == written


def test_an_encoder_can_be_used_again() -> None:
    encoder = BatchExistEncoder("default")
    for keys in (["a"], ["b" * 300], [], ["é"], ["a"], ["c", "dd"]):
        assert encoder.encode(keys) == naive.request(keys, "default")


keys_of_any_kind = st.one_of(
    st.text(max_size=12),
    st.text("ab\0", max_size=3),
    st.binary(max_size=12),
    st.sampled_from(["x" * 255, "x" * 256, b"y" * 255, b"y" * 256, "é" * 127, "é" * 128]),
)


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        st.lists(keys_of_any_kind, max_size=20),
        st.lists(st.text("abc", min_size=3, max_size=3), max_size=300),
        st.lists(keys_of_any_kind, max_size=3).map(lambda keys: keys * 100),
    ),
    st.one_of(st.none(), st.text(max_size=10), st.sampled_from(["t" * 255, "t" * 256, "é" * 128])),
)
@example(["\ud7ff"], None)
@example(["\U0010ffff"] * 256, "\U0010ffff")
def test_any_keys_are_written_as_described(keys: list[str | bytes], tenant: str | None) -> None:
    assert encode(keys, tenant) == naive.request(keys, tenant)


NO_KEYS: dict[str, tuple[object, str]] = {
    "int": (7, "7 of type int"),
    "bool": (True, "True of type bool"),
    "None": (None, "None of type NoneType"),
    "float": (1.5, "1.5 of type float"),
    "bytearray": (bytearray(b"key"), r"bytearray\(b'key'\) of type bytearray"),
    "memoryview": (memoryview(b"key"), "of type memoryview"),
    "list": (["key"], r"\['key'\] of type list"),
    "tuple": ((), r"\(\) of type tuple"),
    "a long one": (list(range(10_000)), "… of type list"),
}


@pytest.mark.parametrize(("no_key", "named"), NO_KEYS.values(), ids=NO_KEYS)
@pytest.mark.parametrize("write", [encode, check_keys], ids=["encode", "check_keys"])
def test_what_is_neither_str_nor_bytes_is_refused_with_its_place(
    write: Callable[[Sequence[str | bytes]], object], no_key: str, named: str
) -> None:
    company: list[list[str | bytes]] = [[], ["a"], ["a", b"b"], ["é"], [b"b"]]
    for others in company:
        with pytest.raises(InvalidKeyError, match=f"key {len(others)} is .*{named}; keys are str or bytes") as caught:
            write([*others, no_key, *others])
        assert len(str(caught.value)) < 200


SURROGATES = {"alone": "\ud800", "low": "\udfff", "within": "a" * 1000 + "\udc80" + "é", "a pair": "\ud83d\ude80"}


@pytest.mark.parametrize("key", SURROGATES.values(), ids=SURROGATES)
@pytest.mark.parametrize("write", [encode, check_keys], ids=["encode", "check_keys"])
def test_a_str_without_utf8_form_is_refused_with_its_place_and_the_cure(
    write: Callable[[Sequence[str | bytes]], object], key: str
) -> None:
    for others in ([], ["a"], [b"b"]):
        with pytest.raises(InvalidKeyError, match=rf"key {len(others)} has no UTF-8 form .*raw bytes") as caught:
            write([*others, key])
        str(caught.value).encode()  # the message itself must not be unprintable
        assert len(str(caught.value)) < 400


def test_the_first_bad_key_is_the_one_named() -> None:
    with pytest.raises(InvalidKeyError, match="key 1 is None"):
        encode(["a", None, 3])  # type: ignore[list-item]


def test_check_keys_lets_every_good_key_pass() -> None:
    for keys in KEYS.values():
        check_keys(keys)


def test_keys_over_the_limit_are_refused_and_those_at_it_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_KEY_BYTES", 1000)
    fitting: list[list[str | bytes]] = [["x" * 1000], ["x" * 500] * 2, ["x" * 999, "y"], [b"x" * 1000], ["é" * 500]]
    for keys in fitting:
        assert encode(keys) == naive.request(keys, None)
        with pytest.raises(LocalProtocolError, match=f"{len(keys) + 1} keys of 1001 bytes .* the limit is 1000"):
            encode([*keys, "z"])
    lone: list[str | bytes] = ["x" * 1001, b"x" * 1001, "é" * 501]
    for key in lone:
        with pytest.raises(LocalProtocolError, match=r"1 keys of 100[12] bytes"):
            encode([key])


def test_the_limit_is_16_mb() -> None:
    megabyte = "x" * (1 << 20)
    assert len(encode([megabyte] * 16)) > 16 << 20
    with pytest.raises(LocalProtocolError, match="17 keys of 17825792 bytes do not fit one call"):
        encode([megabyte] * 17)


# ---- answers ------------------------------------------------------------------------------------------------------


def as_reply(answers: Sequence[bool | int]) -> Reply:
    bits = bytes(int(answer) if isinstance(answer, bool) else ERROR for answer in answers)
    return Reply(bits, {i: answer for i, answer in enumerate(answers) if not isinstance(answer, bool)})


ANSWERS: dict[str, list[bool | int]] = {
    "none": [],
    "hit": [True],
    "miss": [False],
    "error": [-600],
    "hits and misses": [True, False, False, True],
    "an error first": [-600, True, False],
    "an error last": [True, False, -1701],
    "errors only": [-600] * 5,
    "an error of code 0": [0],
    "the extreme codes": [2**31 - 1, -(2**31), 1, -1],
    "a code like two hits": [0x01010101, True],
    "codes like hits": [0x01010101, 0x01010101, True, True],
    **{f"{n} hits": [True] * n for n in (2, 255, 256, 65535, 65536)},
    **{f"{n} with an error": [True] * (n - 1) + [-600] for n in (255, 256, 257, 65536)},
}
every_answer = pytest.mark.parametrize("answers", ANSWERS.values(), ids=ANSWERS)


@every_answer
@pytest.mark.parametrize("debug", [True, False])
def test_answers_are_read_at_every_width(answers: list[bool | int], debug: bool) -> None:
    for width in naive.WIDTHS:
        if len(answers) < 256**width:
            body = naive.answer(answers, width=width, debug=debug)
            assert decode_batch_exist(body, len(answers)) == as_reply(answers)
            if width == 1:
                body = naive.answer(answers, width=1, meta=True)
                assert decode_batch_exist(body, len(answers)) == as_reply(answers)


@every_answer
def test_answers_that_end_early_or_late_are_refused(answers: list[bool | int]) -> None:
    body = naive.answer(answers, debug=True)
    lengths = range(len(body)) if len(body) < 600 else [*range(20), *range(len(body) - 20, len(body))]
    for length in lengths:
        with pytest.raises(RemoteProtocolError):
            decode_batch_exist(body[:length], len(answers))
    for behind in (b"\0", b"\1", b"\1\1", b"\0\0\0\0\0"):
        with pytest.raises(RemoteProtocolError, match=f"{len(behind)} bytes follow the answer for the last of"):
            decode_batch_exist(body + behind, len(answers))


@every_answer
def test_another_number_of_answers_than_keys_is_refused(answers: list[bool | int]) -> None:
    count = len(answers)
    for asked in {0, 1, count - 1, count + 1, count + 256} - {count, -1}:
        with pytest.raises(RemoteProtocolError, match=f"answered {count} keys where {asked} were asked"):
            decode_batch_exist(naive.answer(answers), asked)


def test_a_count_that_no_memory_could_hold_is_only_compared() -> None:
    body = naive.header(naive.RESULTS, 8) + b"\xff" * 8
    with pytest.raises(RemoteProtocolError, match="answered 18446744073709551615 keys where 1 were asked"):
        decode_batch_exist(body, 1)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ("03 01 01 01 01 01", "answer for key 2 is missing"),
        ("03 01 01 01 02 01 01", "answer for key 1 is 02, not 00 or 01"),
        ("03 01 01 ff 01 01 01", "answer for key 1 starts with ff"),
        ("02 01 01", "answer for key 1 starts with nothing"),
        ("02 01 01 01", "answer for key 1 is missing"),
        ("02 01 01 00 a8 fd ff", "ends inside the error code of key 1"),
        ("01 01 02", "answer for key 0 is 02, not 00 or 01"),
    ],
)
def test_an_answer_that_is_neither_hit_nor_miss_nor_error_is_refused(payload: str, complaint: str) -> None:
    body = naive.header(naive.RESULTS, 1, debug=True) + bytes.fromhex(payload)
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode_batch_exist(body, int(payload[:2], 16))


def test_an_answer_of_another_type_is_refused_by_name() -> None:
    with pytest.raises(RemoteProtocolError, match="BatchExistKey's answer: type hash"):
        decode_batch_exist(naive.request(["key"], None), 1)


def test_every_answer_fits_the_most_that_is_expected() -> None:
    for count in (0, 1, 255, 256, 65536):
        body = naive.answer([-600] * count, width=8, debug=True)
        assert len(body) <= largest_batch_exist_answer(count)


def read_or_none(body: bytes, count: int) -> Reply | None:
    try:
        return decode_batch_exist(body, count)
    except RemoteProtocolError:
        return None


def check_against_naive(body: bytes, count: int) -> None:
    answers = naive.read_answer(body, count)
    assert read_or_none(body, count) == (None if answers is None else as_reply(answers))


each_answer = st.one_of(st.booleans(), st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, 1, 0x01010101, -600]))
answer_heads = st.builds(
    naive.header, st.just(naive.RESULTS), st.sampled_from(naive.WIDTHS), meta=st.just(True), debug=st.booleans()
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(each_answer, max_size=30).filter(lambda answers: len(answers) < 256),
    st.sampled_from(naive.WIDTHS),
    st.booleans(),
)
def test_any_answers_are_read_as_they_were_given(answers: list[bool | int], width: int, debug: bool) -> None:
    body = naive.answer(answers, width=width, debug=debug)
    assert decode_batch_exist(body, len(answers)) == as_reply(answers)
    check_against_naive(body, len(answers))


@settings(deadline=None, max_examples=500)
@given(
    st.one_of(
        st.binary(max_size=40),
        st.builds(lambda head, tail: head + tail, answer_heads, st.binary(max_size=30)),
        st.builds(lambda head, tail: head + bytes(tail), answer_heads, st.lists(st.integers(0, 3), max_size=30)),
    ),
    st.integers(0, 6),
)
def test_any_bytes_are_read_as_described_or_refused(body: bytes, count: int) -> None:
    check_against_naive(body, count)
    for read in (decode_error_message, decode_service_ready):
        with suppress(RemoteProtocolError):
            read(body)


@settings(deadline=None, max_examples=300)
@given(st.lists(each_answer, min_size=1, max_size=6), st.booleans(), st.integers(0, 2**32))
def test_an_answer_with_a_few_bytes_changed_is_read_as_described_or_refused(
    answers: list[bool | int], debug: bool, seed: int
) -> None:
    chance = random.Random(seed)
    body = bytearray(naive.answer(answers, debug=debug))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(body))
        if chance.random() < 0.5:
            body[at] = chance.choice((0, 1, 2, 4, 8, 0xFF))
        elif chance.random() < 0.5:
            del body[at]
        else:
            body.insert(at, chance.choice((0, 1)))
        if not body:
            break
    check_against_naive(bytes(body), len(answers))


# ---- ServiceReady and errors --------------------------------------------------------------------------------------

VERSION = naive.header(naive.VERSION, 1, debug=True)
NO_VERSION = naive.header(naive.NO_VERSION, 1, debug=True)

SERVICE_READY = {
    "0.3.9 and later": (VERSION + b"\1\0052.0.0", ServiceReady("2.0.0")),
    "a release build": (naive.header(naive.VERSION, 1) + b"\1\0052.0.0", ServiceReady("2.0.0")),
    "an empty version": (VERSION + b"\1\0", ServiceReady("")),
    "a long version": (naive.header(naive.VERSION, 2) + b"\1\x2c\1" + b"v" * 300, ServiceReady("v" * 300)),
    "a version that is no text": (VERSION + b"\1\2\xff\xfe", ServiceReady("\ufffd\ufffd")),
    "a standby": (VERSION + b"\0" + (-1010).to_bytes(4, "little", signed=True), ServiceReady(None, -1010)),
    "0.3.7": (bytes.fromhex("cd6828af 04 87fa01 00 01"), ServiceReady(None)),
    "0.3.7, a release build": (naive.header(naive.NO_VERSION, 1) + b"\1", ServiceReady(None)),
    "0.3.7, not serving": (NO_VERSION + b"\0" + (-1010).to_bytes(4, "little", signed=True), ServiceReady(None, -1010)),
}
every_service_ready = pytest.mark.parametrize(("body", "ready"), SERVICE_READY.values(), ids=SERVICE_READY)


@every_service_ready
def test_service_ready_is_understood_in_each_form(body: bytes, ready: ServiceReady) -> None:
    assert decode_service_ready(body) == ready


@every_service_ready
def test_service_ready_that_ends_early_or_late_is_refused(body: bytes, ready: ServiceReady) -> None:
    for length in range(len(body)):
        with pytest.raises(RemoteProtocolError):
            decode_service_ready(body[:length])
    for behind in (b"\0", b"\1", bytes(4)):
        with pytest.raises(RemoteProtocolError):
            decode_service_ready(body + behind)


@pytest.mark.parametrize("head", [VERSION, NO_VERSION])
def test_service_ready_without_a_verdict_is_refused_and_never_taken_for_serving(head: bytes) -> None:
    for payload in (b"", b"\2", b"\xff\0", b"\0\0\0\0\0"):
        with pytest.raises(RemoteProtocolError, match="ServiceReady was answered with"):
            decode_service_ready(head + payload)


@pytest.mark.parametrize("text", ["", "invalid rpc arg", "é🚀", "x" * 255, "x" * 256, "x" * 65536])
@pytest.mark.parametrize("debug", [True, False])
def test_error_messages_are_read(text: str, debug: bool) -> None:
    assert decode_error_message(naive.string(text.encode(), debug=debug)) == text


def test_an_error_message_that_is_no_text_is_still_shown() -> None:
    assert decode_error_message(naive.string(b"bad \xff byte")) == "bad \ufffd byte"


@pytest.mark.parametrize("text", [b"", b"message", b"x" * 300])
def test_error_messages_that_end_early_or_late_are_refused(text: bytes) -> None:
    body = naive.string(text, debug=True)
    for wrong in [body[:length] for length in range(len(body))] + [body + b"\0"]:
        with pytest.raises(RemoteProtocolError):
            decode_error_message(wrong)
