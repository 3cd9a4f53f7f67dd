"""What `aiomooncake bench` does: a run, its progress, its report."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NoReturn

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..bench.replay import TRACE
from ..bench.report import headline_table, write_page, write_pictures
from ..bench.result import load_result
from ..bench.run import full_settings, quick_settings, run_scenarios
from ..bench.scenarios import SCENARIOS
from .console import fail, stderr, stdout
from .runner import FAILED, MISUSED, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from typing_extensions import Self

    from ..bench.session import Settings

__all__ = ["run_bench", "run_report"]


def run_bench(
    only: Sequence[str] | None, *, full: bool, report: Path, trace: Path | None, pythons: tuple[str, ...]
) -> NoReturn:
    """Measure, write result and report, print the headlines, and end with the exit status."""
    unknown = set(only or ()) - set(SCENARIOS)
    if unknown:
        fail(f"no scenario is named {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}", MISUSED)
    if trace is not None and not trace.is_file():
        fail(f"there is no trace {trace}", MISUSED)
    settings = (full_settings if full else quick_settings)(trace or TRACE, pythons)
    command = ["aiomooncake", "bench", "--full" if full else "--quick"]
    command += [part for name in only or () for part in ("--only", name)]
    command += ["--trace", trace.name] if trace is not None else []
    run(_bench(only or list(SCENARIOS), settings, report, shlex.join(command)))


def run_report(result: Path, report: Path, pictures: Path | None) -> None:
    """Report an earlier result again."""
    try:
        loaded = load_result(result)
    except (OSError, ValueError, TypeError, KeyError) as error:
        fail(f"{result} cannot be read: {error}", MISUSED)
    try:
        write_page(loaded, report)
        written = [report, *(write_pictures(loaded, pictures) if pictures is not None else ())]
    except OSError as error:
        fail(f"the report cannot be written: {error}", FAILED)
    stdout().print(headline_table(loaded))
    stderr().print(*(f"wrote {path}" for path in written), sep="\n", style="dim", soft_wrap=True)


async def _bench(names: Sequence[str], settings: Settings, report: Path, command: str) -> int:
    data = report.with_suffix(".json")
    with _Bar() as bar:
        result = await run_scenarios(names, settings, command=command, progress=bar)
        bar.say("writing the report")
        try:
            data.write_text(result.to_json())
            write_page(result, report)
        except OSError as error:
            fail(f"the report cannot be written: {error}", FAILED)
    stdout().print(headline_table(result))
    stderr().print(f"wrote {report} and {data} after {result.duration:.0f} s", style="dim", soft_wrap=True)
    return 0


class _Bar:
    """Progress on stderr, if that is a terminal. It is drawn between measurements only: drawing would be measured."""

    def __init__(self) -> None:
        console = stderr()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(
            *columns, console=console, auto_refresh=False, transient=True, expand=True, disable=not console.is_terminal
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, steps: int) -> None:
        self._task = self._progress.add_task("", total=steps)

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text, refresh=True)

    def step(self) -> None:
        self._progress.update(self._task, advance=1, refresh=True)
