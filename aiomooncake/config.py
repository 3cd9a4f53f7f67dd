"""How an engine behaves: one frozen object, checked when it is made."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from .errors import ConfigError

__all__ = ["DEFAULT_PREDICTOR_PAGES", "EngineConfig", "check_timeout"]

# 1 MB.
DEFAULT_PREDICTOR_PAGES = 500_000


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of an engine. The defaults were chosen by measurement (benchmarks/defaults.py).

    Args:
        timeout: seconds that a call may take, waiting in the queue and connecting included. None: no limit.
        max_batch_keys: most keys in one BatchExistKey call. The master serves a connection in order, so this bounds
            how long one call holds up the next.
        max_in_flight: calls that may await their answer on one connection.
        max_pending_keys: most keys that wait to be sent. A question that finds no place among them waits outside
            (`overload="wait"`) or is refused with OverloadedError (`overload="raise"`). One that could never fit is
            let in when nothing else waits.
        overload: "wait" or "raise", see `max_pending_keys`.
        connections: TCP connections to the master, or worker threads for a store. With two or more, one is kept free
            of the calls of questions over 4096 keys.
        linger: seconds that a batch may wait for company; 0: never.
        errors: "raise", or "miss": a lookup that failed answers as if nothing were cached. It is counted in
            `stats().degraded`. Wrong use (a bad key, a closed engine) raises all the same.
        dedup: ask a key that several callers wait for in the same batch once.
        predict: choose what a prefix lookup asks first from what was seen before.
        predictor_pages: pages that the predictor remembers, at two bytes each.

    Raises:
        ConfigError: a value is of the wrong type or out of range.
    """

    timeout: float | None = 1.0
    max_batch_keys: int = 2048
    max_in_flight: int = 2
    max_pending_keys: int = 1 << 20
    overload: Literal["wait", "raise"] = "wait"
    connections: int = 2
    linger: float = 0.0
    errors: Literal["raise", "miss"] = "raise"
    dedup: bool = True
    predict: bool = True
    predictor_pages: int = DEFAULT_PREDICTOR_PAGES

    def __post_init__(self) -> None:
        check_timeout(self.timeout)
        _check_count("max_batch_keys", self.max_batch_keys, 1 << 20)
        _check_count("max_in_flight", self.max_in_flight, 1 << 10)
        _check_count("max_pending_keys", self.max_pending_keys)
        _check_count("connections", self.connections, 1 << 8)
        _check_count("predictor_pages", self.predictor_pages)
        if not _is_duration(self.linger):
            raise ConfigError(f"linger is {self.linger!r}; give seconds, 0 to send at once")
        _check_choice("overload", self.overload, ("wait", "raise"))
        _check_choice("errors", self.errors, ("raise", "miss"))
        for name in ("dedup", "predict"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give True or False")


def check_timeout(timeout: object) -> None:
    """Raise ConfigError unless `timeout` is None or a number of seconds, 0 or more."""
    if timeout is not None and not _is_duration(timeout):
        raise ConfigError(f"timeout is {timeout!r}; give seconds, 0 or more, or None for no limit")


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def _check_count(name: str, value: object, most: int = (1 << 63) - 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"{name} is {value!r}; give a whole number from 1 to {most}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; give {' or '.join(map(repr, choices))}")
