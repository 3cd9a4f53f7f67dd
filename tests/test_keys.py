from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from aiomooncake.errors import InvalidKeyError
from aiomooncake.keys import KeyRun, ObjectKeys
from aiomooncake.wire.messages import BatchExistEncoder

AFFIX = st.text(alphabet="ab_é漢", max_size=4)
AFFIXES = st.lists(st.tuples(AFFIX, AFFIX), min_size=1, max_size=4).map(tuple)
HASH = st.text(alphabet="0f", min_size=3, max_size=3)
RUNS = st.lists(st.builds(KeyRun, AFFIXES, st.lists(HASH, min_size=1, max_size=5)), max_size=4)


def spelled(runs: list[KeyRun]) -> list[str]:
    return [f"{head}{page}{tail}" for run in runs for page in run.page_hashes for head, tail in run.affixes]


@given(RUNS)
def test_they_are_the_keys_page_by_page_and_within_a_page_by_affix(runs: list[KeyRun]) -> None:
    keys, expected = ObjectKeys(runs), spelled(runs)
    assert len(keys) == len(expected)
    assert list(keys) == expected
    assert [keys[place] for place in range(-len(keys), len(keys))] == expected * 2
    for place in (len(keys), -len(keys) - 1):
        with pytest.raises(IndexError):
            _ = keys[place]


@given(RUNS, st.none() | st.integers(-30, 30), st.none() | st.integers(-30, 30))
def test_a_part_of_them_is_what_it_would_be_of_a_list_and_can_be_cut_again(
    runs: list[KeyRun], start: int | None, stop: int | None
) -> None:
    part, expected = ObjectKeys(runs, 3)[start:stop], spelled(runs)[start:stop]
    assert list(part) == expected
    assert list(part[1:-1]) == expected[1:-1]
    assert list(ObjectKeys(runs, 3)[start:stop:2]) == spelled(runs)[start:stop:2]
    assert isinstance(part, ObjectKeys)
    assert part.hash_length == 3


@given(st.lists(st.tuples(RUNS, st.integers(0, 20), st.integers(0, 60)), max_size=4))
def test_those_of_several_questions_are_one_sequence(cuts: list[tuple[list[KeyRun], int, int]]) -> None:
    parts = [ObjectKeys(runs, 3)[start:stop] for runs, start, stop in cuts]
    joined = ObjectKeys.joined(parts)
    if not parts:
        assert joined is None
        return
    assert joined is not None
    assert list(joined) == [key for part in parts for key in part]
    assert joined.hash_length == 3
    for other in (ObjectKeys([], 4), ObjectKeys([]), ["key"]):
        assert ObjectKeys.joined([*parts, other]) is None


@given(RUNS)
def test_whether_they_repeat_is_known_without_spelling_them(runs: list[KeyRun]) -> None:
    named = [(around, page) for run in runs for page in run.page_hashes for around in run.affixes]
    assert ObjectKeys(runs, 3).repeat() == (len(set(named)) < len(named))


@settings(deadline=None)
@given(RUNS, st.integers(0, 20), st.integers(0, 60), st.sampled_from([None, "default", "t" * 300]))
def test_unspelled_keys_look_the_same_on_the_wire(
    runs: list[KeyRun], start: int, stop: int, tenant: str | None
) -> None:
    encoder = BatchExistEncoder(tenant)
    expected = encoder.encode(spelled(runs)[start:stop])
    assert encoder.encode(ObjectKeys(runs, 3)[start:stop]) == expected
    assert encoder.encode(ObjectKeys(runs)[start:stop]) == expected  # page hashes of several lengths, or not ASCII


@pytest.mark.parametrize(("pages", "around"), [(127, 0), (128, 0), (1, 200), (1, 70_000), (32_768, 0)])
def test_lengths_of_every_width_are_written(pages: int, around: int) -> None:
    runs = [KeyRun((("a" * around, "é"), ("", "_v")), ["0" * 64] * pages)]
    encoder = BatchExistEncoder("default")
    assert encoder.encode(ObjectKeys(runs, 64)) == encoder.encode(spelled(runs))


def test_an_affix_without_a_utf8_form_is_refused_with_the_key_it_is_in() -> None:
    keys = ObjectKeys([KeyRun((("", "_k"), ("", "_\ud800")), ["00", "11"])], 2)
    with pytest.raises(InvalidKeyError, match=r"key 1 has no UTF-8 form.*'00_\\ud800'"):
        BatchExistEncoder("default").encode(keys)
