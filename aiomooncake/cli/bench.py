"""`aiomooncake bench`: measure, and report."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

_DEFAULT_REPORT = Path("aiomooncake-bench.html")

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Six rounds and 10,000 samples for a p99, or under a minute.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="SCENARIO", help="Run only this one; may be repeated.", show_default=False),
    ] = None,
    report: Annotated[
        Path, typer.Option(metavar="FILE", help="The report; the result goes beside it, as .json.")
    ] = _DEFAULT_REPORT,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Another trace in Mooncake's format, .jsonl or .jsonl.xz.", show_default=False
        ),
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Also measure the engine in this interpreter, which needs aiomooncake[bench]; may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure the engine beside the official client, what people build from it, and bare sockets.

    This starts a real master here, and one process for each contender; they take turns. It needs the extras bench and
    one that brings Mooncake: pip install 'aiomooncake[bench,non-cuda]'. Anything else that runs on this machine
    meanwhile shows in the figures.

    \b
      aiomooncake bench                          under a minute; what to expect
      aiomooncake bench --full                   about an hour; what to publish
      aiomooncake bench --only tail --only trace
      aiomooncake bench report RESULT.json       make the report again

    \b
    Scenarios:
      single       one caller, one key: what the engine adds to a bare round trip
      callers      many callers at once: lookups/s, CPU, calls to the master
      tail         open loop: latency against load, from the planned start
      bulk         large questions; growth with the number of keys
      connections  the engine with one to four connections
      pythons      the engine in the interpreters named by --python
      distance     a master that is 0.1, 1 or 5 ms away, by a delaying proxy
      hybrid       prompts in six pools, beside SGLang's way of asking
      trace        a production trace, replayed against a store that evicts

    \b
    Exit status:
      0  measured
      2  the command was not understood, or the extras are missing
      3  the cluster or a contender could not be started
    """  # noqa: D301
    _require_extra()
    if context.invoked_subcommand is not None:
        return
    from .bench_run import run_bench

    run_bench(only, full=full, report=report, trace=trace, pythons=tuple(python or ()))


@app.command("report")
def remake(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="The .json of an earlier run.", show_default=False)],
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The report; default: beside the result.", show_default=False)
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write the main charts there, as SVG and PNG.", show_default=False),
    ] = None,
) -> None:
    """Make the report of an earlier run again.

    \b
      aiomooncake bench report benchmarks/results/full.json --pictures docs
    """  # noqa: D301
    from .bench_run import run_report

    run_report(result, report or result.with_suffix(".html"), pictures)


def _require_extra() -> None:
    missing = [name for name in ("hdrh", "matplotlib", "aiodataloader") if importlib.util.find_spec(name) is None]
    if missing:
        from .console import fail
        from .runner import MISUSED

        fail(f"bench needs {' and '.join(missing)}: pip install 'aiomooncake[bench]'", MISUSED)
