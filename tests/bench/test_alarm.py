from __future__ import annotations

import time

import anyio
import pytest

from aiomooncake.bench.alarm import Alarm

pytestmark = pytest.mark.anyio


async def test_an_alarm_rings_once_and_never_early() -> None:
    rung: list[float] = []
    alarm = Alarm(lambda: rung.append(time.monotonic()))
    try:
        when = time.monotonic() + 0.0123
        alarm.set(when)
        while not rung:
            await anyio.sleep(0.001)
        await anyio.sleep(0.02)
    finally:
        alarm.close()
    assert len(rung) == 1
    assert rung[0] >= when


async def test_an_alarm_that_is_set_anew_forgets_the_time_before() -> None:
    rung = anyio.Event()
    alarm = Alarm(rung.set)
    try:
        alarm.set(time.monotonic() + 3600)
        alarm.set(0.0)  # long past
        await rung.wait()
    finally:
        alarm.close()
