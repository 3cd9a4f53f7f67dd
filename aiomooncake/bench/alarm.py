"""Timers that keep to the microsecond on an event loop.

Loops round their own timers to milliseconds, which would start every planned lookup up to 1 ms late and blame the
contender for it. The kernel's timers do not.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Alarm"]

_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_SECOND = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Calls `callback` on the running loop at the time that was set last. Linux only.

    Args:
        callback: Called once for each `set`; it may set the alarm again.
    """

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        self._loop.add_reader(self._fd, self._ring)

    def set(self, when: float) -> None:
        """Ring at `when` on the clock of `time.monotonic`; at once if that is past."""
        seconds, nanoseconds = divmod(max(1, round(when * _SECOND)), _SECOND)  # 0 would disarm it
        spec = _Itimerspec(value=_Timespec(seconds, nanoseconds))
        self._checked(self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None))

    def close(self) -> None:
        """Never ring again."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # it was set anew meanwhile
            os.read(self._fd, 8)
            self._callback()

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
