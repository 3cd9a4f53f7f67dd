from __future__ import annotations

import asyncio

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from aiomooncake.errors import StoreError
from aiomooncake.hybrid import prefix_length

from .world import World, run


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=300), st.integers(0, 300), st.integers(1, 64))
def test_the_leading_run_is_counted_in_windows_that_double(present: list[bool], sure: int, first_window: int) -> None:
    present = [i < sure or bit for i, bit in enumerate(present)]
    keys: list[str | bytes] = [f"k{i}" if i % 3 else f"k{i}".encode() for i in range(len(present))]
    world = World(key for key, bit in zip(keys, present, strict=True) if bit)
    prefix = asyncio.run(prefix_length(world.ask, keys, first_window=first_window))
    assert prefix.length == run(present)
    assert prefix.degraded is None
    assert prefix.round_trips == len(world.asked)
    assert prefix.keys_queried == sum(map(len, world.asked)) <= max(first_window, 3 * prefix.length + first_window)
    assert [key for keys in world.asked for key in keys] == keys[: prefix.keys_queried]


def test_no_keys_cost_no_call() -> None:
    world = World()
    assert asyncio.run(prefix_length(world.ask, [])) == (0, 0, 0, None)
    assert world.asked == []


def test_an_error_ends_the_prefix_only_when_it_is_reached() -> None:
    keys = [f"k{i}" for i in range(100)]
    world = World(keys[:40], {"k50": -900})
    assert asyncio.run(prefix_length(world.ask, keys)).degraded is None
    world.codes = {"k35": -900, "k36": -1}
    with pytest.raises(StoreError) as caught:
        asyncio.run(prefix_length(world.ask, keys))
    assert (caught.value.code, caught.value.key, caught.value.count) == (-900, "k35", 2)
    assert asyncio.run(prefix_length(world.ask, keys, errors="miss")) == (35, 96, 2, -900)
