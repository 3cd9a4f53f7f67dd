"""What a lookup may cost, counted and not timed. The one place to change when a change is worth its cost.

Counts were taken on CPython 3.11 with uvloop and rounded up by about a sixth: other versions of Python count calls of
C functions a little differently. TCP splits requests and answers as it likes, so large ones may take more calls.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BUDGETS", "Budget"]


class Budget(NamedTuple):
    """Most that one lookup may cost.

    Attributes:
        master_calls: Calls that the master counts.
        master_keys: Keys that the master counts.
        python_calls: Python functions entered in the thread of the loop.
        all_calls: Those and functions written in C.
        sends: System calls that write to a socket.
        receives: System calls that read from one.
        peak_bytes: Most memory taken at once, for each lookup under way.
    """

    master_calls: float
    master_keys: float
    python_calls: float
    all_calls: float
    sends: float
    receives: float
    peak_bytes: float


BUDGETS = {
    "one caller, one key": Budget(
        master_calls=1, master_keys=1, python_calls=41, all_calls=82, sends=1, receives=1.1, peak_bytes=6_000
    ),
    "1000 callers, one key": Budget(
        master_calls=0.01, master_keys=1, python_calls=12.5, all_calls=21, sends=0.01, receives=0.01, peak_bytes=1_750
    ),
    "256 callers, 64 keys": Budget(
        master_calls=0.04, master_keys=64, python_calls=26, all_calls=54, sends=0.04, receives=0.1, peak_bytes=5_800
    ),
    "one caller, 20,000 keys": Budget(
        master_calls=10,
        master_keys=20_000,
        python_calls=570,
        all_calls=1_350,
        sends=20,
        receives=30,
        peak_bytes=950_000,
    ),
    "hybrid, 512 pages, predicted": Budget(
        master_calls=2, master_keys=783, python_calls=400, all_calls=1_100, sends=2, receives=4, peak_bytes=190_000
    ),
    "32 callers, hybrid, 512 pages, predicted": Budget(
        master_calls=0.5, master_keys=783, python_calls=290, all_calls=830, sends=0.5, receives=0.5, peak_bytes=98_000
    ),
}
