"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import html
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from ..histogram import SAMPLES_FOR_P99
from ..result import METHOD
from ..scenarios import SCENARIOS
from .charts import CHARTS
from .headlines import headlines
from .palette import variables
from .pictures import inline_svg
from .series import all_series, cpu, throughput
from .units import count, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ..result import Result
    from ..scenarios import Scenario
    from .series import Series

__all__ = ["write_page"]


def write_page(result: Result, path: Path) -> None:
    """Write the report of a result, raw histograms included, to `path`."""
    series = all_series(result)
    template = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    measured = {measurement.scenario for measurement in result.measurements}
    page = template.substitute(
        light=variables(dark=False),
        dark=variables(dark=True),
        mode=html.escape(result.mode),
        date=html.escape(result.date[:10]),
        caution=_caution(result, series),
        headlines=_table(("", "aiomooncake", "rounds", "noise (A/A)"), headlines(result)),
        sections="".join(_section(SCENARIOS[name], series) for name in SCENARIOS if name in measured),
        method="".join(f"<li>{html.escape(text)}</li>" for text in METHOD),
        clients=_table(("contender", "what it is"), result.clients.items()),
        machine=_table(("machine", ""), result.machine.items()),
        versions=_table(("software", "version"), result.versions.items()),
        command=html.escape(result.command),
        duration=f"{result.duration:,.0f}",
        started=html.escape(result.date),
        # What could end the element is no part of JSON outside of strings, and may be escaped within.
        data=result.to_json().replace("<", "\\u003c"),
    )
    path.write_text(page, encoding="utf-8")


def _caution(result: Result, series: Sequence[Series]) -> str:
    few = sum(not one.latency.p99_is_sound for one in series)
    if not few:
        return ""
    text = (
        f"{few} of {len(series)} rows rest on fewer than {SAMPLES_FOR_P99:,} samples: their p99 (marked ~) is rough."
        + (" This was a quick run; publish figures of a full one." if result.mode == "quick" else "")
    )
    return f'<p class="caution">{text}</p>'


def _section(scenario: Scenario, series: Sequence[Series]) -> str:
    charts = ((chart, inline_svg(chart, series)) for chart in CHARTS if chart.scenario == scenario.name)
    figures = "".join(
        f"<figure><figcaption>{html.escape(chart.title)}</figcaption>{svg}</figure>" for chart, svg in charts if svg
    )
    rows = [_row(one) for one in series if one.scenario == scenario.name]
    return (
        f'<section id="{scenario.name}"><h2>{html.escape(scenario.title)}</h2><p>{html.escape(scenario.text)}</p>'
        f'<div class="charts">{figures}</div>'
        f"<details><summary>All figures</summary>{_table(_COLUMNS, rows)}</details></section>"
    )


_COLUMNS = (
    "contender", "load", "lookups/s", "p50", "p90", "p99", "p99.9", "max", "timeouts", "CPU a lookup",
    "master calls a lookup", "master keys a lookup", "ideal keys", "loop lag p99", "samples",
)  # fmt: skip


def _row(one: Series) -> tuple[str, ...]:
    latency = one.latency
    load = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in one.load.items())
    achieved = count(one.median(throughput))
    rate = achieved if one.offered is None else f"{achieved} of {count(one.offered)}"
    failed = (
        "" if one.offered is None else str(one.timeouts) if not one.errors else f"{one.timeouts}, {one.errors} errors"
    )
    ideal = one.median(lambda measurement: measurement.ideal_keys or 0.0)
    return (
        one.client,
        load,
        rate,
        *(duration(value) for value in (latency.p50, latency.p90)),
        f"{'' if latency.p99_is_sound else '~'}{duration(latency.p99)}",
        *(duration(value) for value in (latency.p999, latency.max)),
        failed,
        duration(one.median(cpu)),
        f"{one.median(lambda measurement: measurement.master_calls):.3g}",
        f"{one.median(lambda measurement: measurement.master_keys):.5g}",
        f"{ideal:.5g}" if ideal else "",
        duration(one.lag.p99) if one.lag.samples else "",
        f"{latency.samples:,}",
    )


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
