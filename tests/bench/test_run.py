"""A tiny run from the cluster to the page."""

from __future__ import annotations

import json
import lzma
import re
from typing import TYPE_CHECKING

import anyio
import pytest

from aiomooncake.bench.replay import TRACE
from aiomooncake.bench.report import headline_table, write_page, write_pictures
from aiomooncake.bench.report.headlines import headlines
from aiomooncake.bench.result import Result, load_result
from aiomooncake.bench.run import full_settings, quick_settings, run_scenarios
from aiomooncake.bench.scenarios import SCENARIOS
from aiomooncake.bench.session import Settings

if TYPE_CHECKING:
    from pathlib import Path

TINY = Settings("quick", 2, 0.02, 0.01, 100, 0.2, 2048, TRACE, 40, 200.0)
NAMES = ("single", "tail", "hybrid", "trace")


class Counter:
    def __init__(self) -> None:
        self.steps = 0
        self.done = 0
        self.said: list[str] = []

    def begin(self, steps: int) -> None:
        self.steps = steps

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self) -> None:
        self.done += 1


@pytest.fixture(scope="module")
def run() -> tuple[Result, Counter]:
    progress = Counter()

    async def go() -> Result:
        return await run_scenarios(NAMES, TINY, command="aiomooncake bench", progress=progress)

    return anyio.run(go), progress


def test_the_progress_bar_ends_exactly_when_the_run_does(run: tuple[Result, Counter]) -> None:
    result, progress = run
    assert progress.done == progress.steps == len(result.measurements)
    assert {measurement.scenario for measurement in result.measurements} == set(NAMES)


def test_contenders_take_turns_in_both_orders(run: tuple[Result, Counter]) -> None:
    order = [measurement.client for measurement in run[0].measurements if measurement.scenario == "single"]
    half = len(order) // 2
    assert order[:half] == order[half:][::-1]
    assert len(set(order)) == half


def test_the_master_counts_what_was_asked(run: tuple[Result, Counter]) -> None:
    by_client = {m.client: m for m in run[0].measurements if m.scenario == "hybrid"}
    ours, theirs = by_client["aiomooncake"], by_client["whole pools (SGLang)"]
    assert theirs.master_keys == 6 * 512
    assert ours.ideal_keys is not None
    assert ours.ideal_keys <= ours.master_keys < theirs.master_keys
    for measurement in run[0].measurements:
        if measurement.scenario == "single":
            assert (measurement.master_calls, measurement.master_keys) == (1, 1)


def test_a_result_survives_its_file(run: tuple[Result, Counter], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(run[0].to_json())
    assert load_result(path) == run[0]


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("[]")
    with pytest.raises(ValueError, match="no result file"):
        load_result(path)


def test_the_page_stands_alone_and_holds_the_result(run: tuple[Result, Counter], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_page(run[0], path)
    page = path.read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!#)', page)
    assert not re.search(r"url\((?!#)", page)
    assert page.count("<svg") >= 6
    assert "#fe01" not in page
    data = re.search(r'<script type="application/json" id="result">\n(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1]) == json.loads(run[0].to_json())


def test_names_within_the_pictures_of_a_page_are_unique(run: tuple[Result, Counter], tmp_path: Path) -> None:
    write_page(run[0], tmp_path / "report.html")
    pictures = re.findall(r"<svg.*?</svg>", (tmp_path / "report.html").read_text(encoding="utf-8"), re.DOTALL)
    names = [set(re.findall(r'\bid="([^"]*)"', picture)) for picture in pictures]
    assert sum(map(len, names)) == len(set().union(*names))


def test_pictures_follow_the_scheme_of_whoever_looks(run: tuple[Result, Counter], tmp_path: Path) -> None:
    written = write_pictures(run[0], tmp_path / "pictures")
    assert {path.name for path in written} >= {"single.svg", "single.png", "load.svg", "trace-keys.png"}
    assert all("prefers-color-scheme:dark" in path.read_text() for path in written if path.suffix == ".svg")


def test_the_headlines_name_what_was_measured(run: tuple[Result, Counter]) -> None:
    texts = [line.text for line in headlines(run[0])]
    assert any(text.startswith("one caller, one key: p50") for text in texts)
    assert not any("1000 callers" in text for text in texts)
    assert headline_table(run[0]).row_count == len(texts)


def test_every_scenario_knows_how_long_it_is() -> None:
    for settings in (quick_settings(pythons=("python3",)), full_settings(pythons=("python3",))):
        assert all(scenario.slices(settings) > 0 for scenario in SCENARIOS.values())
        assert settings.rounds % 2 == 0


@pytest.mark.parametrize(("requests", "rounds", "replayed"), [(30, 1, 30), (85, 2, 40)])
def test_a_trace_is_replayed_in_as_many_rounds_as_it_has_requests_for(
    tmp_path: Path, requests: int, rounds: int, replayed: int
) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = lzma.decompress(TRACE.read_bytes()).splitlines(keepends=True)
    trace.write_bytes(b"".join(lines[:requests]))
    progress = Counter()

    async def go() -> Result:
        settings = TINY._replace(mode="full", rounds=6, trace=trace)
        return await run_scenarios(["trace"], settings, command="aiomooncake bench", progress=progress)

    result = anyio.run(go)
    clients = [measurement.client for measurement in result.measurements]
    assert clients == ["aiomooncake", "whole pools (SGLang)", "whole pools (SGLang)", "aiomooncake"][: 2 * rounds]
    assert progress.done == progress.steps
    assert {measurement.load["requests"] for measurement in result.measurements} == {replayed}
    assert all(measurement.errors == {} for measurement in result.measurements)
