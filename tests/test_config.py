from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from aiomooncake import EngineConfig
from aiomooncake.config import check_timeout
from aiomooncake.errors import ConfigError

GOOD: list[tuple[str, Any]] = [
    *(("timeout", value) for value in (None, 0, 0.0, 1e-6, 1, 3600.5, 1e308, np.float64(0.5))),
    *(("linger", value) for value in (0, 0.0, 0.001, 1)),
    *(("max_batch_keys", value) for value in (1, 2048, 1 << 20)),
    *(("max_in_flight", value) for value in (1, 1024)),
    *(("max_pending_keys", value) for value in (1, 1 << 40)),
    *(("connections", value) for value in (1, 256)),
    *(("predictor_pages", value) for value in (1, 1 << 24)),
    ("overload", "wait"),
    ("overload", "raise"),
    ("errors", "raise"),
    ("errors", "miss"),
    *((name, value) for name in ("dedup", "predict") for value in (True, False)),
]

NO_DURATION: list[Any] = [
    -1, -1e-9, math.nan, math.inf, -math.inf, 10**400, True, "1", b"1", [1.0], 1j, Decimal(1), Fraction(1),
]  # fmt: skip
NO_COUNT: list[Any] = [0, -1, 1.0, 1.5, math.nan, "1", None, True, [1], 10**30, Decimal(1)]
COUNTS = ("max_batch_keys", "max_in_flight", "max_pending_keys", "connections", "predictor_pages")

BAD: list[tuple[str, Any, str]] = [
    *(("timeout", value, "give seconds, 0 or more, or None for no limit") for value in NO_DURATION),
    *(("linger", value, "give seconds, 0 to send at once") for value in [*NO_DURATION, None]),
    *((name, value, "give a whole number from 1 to") for name in COUNTS for value in NO_COUNT),
    ("max_batch_keys", (1 << 20) + 1, "from 1 to 1048576"),
    ("max_in_flight", 1025, "from 1 to 1024"),
    ("connections", 257, "from 1 to 256"),
    *(("overload", value, "give 'wait' or 'raise'") for value in ("drop", "", None, True, ["wait"], "WAIT")),
    *(("errors", value, "give 'raise' or 'miss'") for value in ("ignore", "", None, False, {"raise"})),
    *((name, value, "give True or False") for name in ("dedup", "predict") for value in (1, 0, None, "yes", "")),
]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_a_good_value_is_kept(name: str, value: Any) -> None:
    assert getattr(EngineConfig(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value", "cure"), BAD)
def test_a_bad_value_is_refused_with_its_name_the_value_and_the_cure(name: str, value: Any, cure: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}; ")
    assert cure in str(caught.value)


@pytest.mark.parametrize("value", [value for name, value in GOOD if name == "timeout"])
def test_a_timeout_of_one_call_may_be_what_the_configs_may_be(value: float | None) -> None:
    check_timeout(value)


@pytest.mark.parametrize("value", NO_DURATION)
def test_a_timeout_of_one_call_may_not_be_what_the_configs_may_not(value: Any) -> None:
    with pytest.raises(ConfigError, match="timeout is "):
        check_timeout(value)


def test_every_option_has_a_good_and_a_bad_value_here() -> None:
    names = {field.name for field in dataclasses.fields(EngineConfig)}
    assert {name for name, _ in GOOD} == names
    assert {name for name, _, _ in BAD} == names


def test_the_defaults_are_good_and_documented() -> None:
    config = EngineConfig()
    assert EngineConfig(**dataclasses.asdict(config)) == config
    documented = inspect.getdoc(EngineConfig) or ""
    for field in dataclasses.fields(EngineConfig):
        assert f"\n    {field.name}: " in documented


def test_a_replaced_field_is_checked_as_well() -> None:
    assert dataclasses.replace(EngineConfig(), timeout=None).timeout is None
    with pytest.raises(ConfigError, match="linger is -1"):
        dataclasses.replace(EngineConfig(), linger=-1)


def test_a_config_is_a_frozen_keyword_only_value() -> None:
    config = EngineConfig(timeout=2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.timeout = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        EngineConfig(1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tiemout"):
        EngineConfig(tiemout=1.0)  # type: ignore[call-arg]
    assert {config: 1}[EngineConfig(timeout=2.0)] == 1
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
