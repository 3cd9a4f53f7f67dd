"""How much is asked on a production trace, with the predictor's default memory of 1 MB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiomooncake.predictor import Predictor
from benchmarks.trace_replay import MLA, V4, Tally, load_trace, replay

if TYPE_CHECKING:
    from aiomooncake.layout import Layout

REQUESTS = load_trace()
BLOCKS = len({block for request in REQUESTS for block in request})
LAYOUTS = pytest.mark.parametrize("layout", [MLA, V4], ids=["MLA", "DeepSeek-V4"])


def assert_within(tally: Tally, keys: float, rounds: float) -> None:
    assert tally.keys_ratio <= keys
    assert tally.rounds_per_lookup <= rounds


def test_without_a_predictor_doubling_windows_ask_little() -> None:
    tally = replay(REQUESTS, MLA, None)
    assert_within(tally, 1.35, 1.7)
    assert tally.in_vain == 0


@LAYOUTS
def test_with_a_predictor_a_lookup_is_one_round_trip_of_the_fewest_keys(layout: Layout) -> None:
    tally = replay(REQUESTS, layout, Predictor())
    assert_within(tally, 1.02, 1.02)
    assert tally.in_vain <= tally.keys / 100


@LAYOUTS
def test_a_store_that_evicts_is_followed(layout: Layout) -> None:
    assert_within(replay(REQUESTS, layout, Predictor(), kept_blocks=BLOCKS * 3 // 10), 1.08, 1.02)


def test_a_store_that_evicts_nearly_everything_soon_is_followed() -> None:
    assert_within(replay(REQUESTS, MLA, Predictor(), kept_blocks=BLOCKS // 10), 1.2, 1.1)


@LAYOUTS
def test_a_client_that_sees_every_fourth_request_still_gains(layout: Layout) -> None:
    assert_within(replay(REQUESTS, layout, Predictor(), every=4), 1.15, 1.65)
