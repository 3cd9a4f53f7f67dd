"""`aiomooncake demo`: a real master, a thousand callers, and what merging their questions does."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NoReturn, Protocol

from rich.progress import BarColumn, Progress, TextColumn

from ..connector import connect
from ..local import LocalCluster
from . import load
from .comparison import Comparison, Measured
from .console import stderr, stdout
from .official import OfficialClient
from .runner import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from ..engine import Engine

__all__ = ["run_demo"]

# The clients take turns in slices, so that what else the machine does falls on both. The bar moves between slices
# only: drawing it would be measured as well.
_SLICES = 4
_TOGETHER_SECONDS = 0.5
_ALONE_SECONDS = 0.25
_PUT_BATCH = 2048
_CALLS_METRIC = "master_batch_exist_key_requests_total"


def run_demo(callers: int, keys: int) -> NoReturn:
    """Measure, print the table, and end with the exit status."""
    run(_demo(callers, keys))


class _Client(Protocol):
    async def all_at_once(self) -> list[list[int]]: ...

    async def over_and_over(self, seconds: float) -> tuple[list[float], float]: ...

    async def one_at_a_time(self, seconds: float) -> list[float]: ...


class _EngineClient:
    """The engine under the load, in this process."""

    def __init__(self, engine: Engine, questions: list[list[str]]) -> None:
        self._questions = questions
        self._engine = engine
        self._ask: load.Ask = self._ask_one if len(questions[0]) == 1 else engine.batch_exists

    async def _ask_one(self, question: list[str]) -> tuple[bool]:
        return (await self._engine.exists(question[0]),)

    async def all_at_once(self) -> list[list[int]]:
        return await load.all_at_once(self._ask, self._questions)

    async def over_and_over(self, seconds: float) -> tuple[list[float], float]:
        return await load.over_and_over(self._ask, self._questions, seconds)

    async def one_at_a_time(self, seconds: float) -> list[float]:
        return await load.one_at_a_time(self._ask, self._questions, seconds)


class _Bar:
    """Progress on stderr, if that is a terminal; nothing is left of it afterwards."""

    def __init__(self, steps: int) -> None:
        console = stderr()
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None))
        self._progress = Progress(
            *columns, console=console, auto_refresh=False, transient=True, expand=True, disable=not console.is_terminal
        )
        self._task = self._progress.add_task("", total=steps)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text, refresh=True)

    def step(self) -> None:
        self._progress.update(self._task, advance=1, refresh=True)


async def _demo(callers: int, keys: int) -> int:
    questions = load.make_questions(callers, keys)
    # Every second key of all, so that questions of one key are answered differently as well.
    stored = [key for number, key in enumerate(chain.from_iterable(questions)) if number % 2 == 0]
    batches = [stored[start : start + _PUT_BATCH] for start in range(0, len(stored), _PUT_BATCH)]
    with _Bar(steps=2 + len(batches) + 2 + 4 * _SLICES) as bar:
        bar.say("starting a master")
        async with LocalCluster(segment_bytes=(64 << 20) + len(stored) * 4096) as cluster:
            bar.step()
            bar.say(f"storing {len(stored)} pages")
            async with OfficialClient(cluster.address, callers, keys) as official:
                for batch in batches:
                    await cluster.put(batch)
                    bar.step()
                await official.joined()
                bar.step()
                async with connect(cluster.address, timeout=30.0) as engine:
                    clients: list[_Client] = [_EngineClient(engine, questions), official]
                    measured = await _measure(clients, cluster, callers, bar)
    comparison = Comparison(questions, set(stored), *measured)
    comparison.print(stdout())
    return 0 if comparison.all_right else 1


async def _measure(clients: Sequence[_Client], cluster: LocalCluster, callers: int, bar: _Bar) -> list[Measured]:
    measured = [Measured() for _ in clients]
    pairs = list(zip(clients, measured, strict=True))
    bar.say(f"{callers} callers ask at once")
    for client, result in pairs:
        before = (await cluster.metrics())[_CALLS_METRIC]
        result.answers = await client.all_at_once()
        result.calls = round((await cluster.metrics())[_CALLS_METRIC] - before)
        bar.step()
    bar.say(f"{callers} callers ask over and over")
    for _ in range(_SLICES):
        for client, result in pairs:
            samples, seconds = await client.over_and_over(_TOGETHER_SECONDS)
            result.together += samples
            result.together_seconds += seconds
            bar.step()
    bar.say("one caller asks")
    for _ in range(_SLICES):
        for client, result in pairs:
            result.alone += await client.one_at_a_time(_ALONE_SECONDS)
            bar.step()
    return measured
