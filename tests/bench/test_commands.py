"""`aiomooncake bench` from the outside."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aiomooncake.bench.contenders import in_interpreter
from aiomooncake.bench.result import load_result
from aiomooncake.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def bench(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aiomooncake", "bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "COLUMNS": "100"},
    )


def test_a_run_writes_result_and_report_and_the_report_can_be_made_again(tmp_path: Path) -> None:
    ran = bench("--only", "hybrid", "--report", "out.html", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "six pools x 512 pages" in ran.stdout
    result = load_result(tmp_path / "out.json")
    assert result.command == "aiomooncake bench --quick --only hybrid"
    first = (tmp_path / "out.html").read_text(encoding="utf-8")
    again = bench("report", "out.json", "--report", "again.html", "--pictures", "pictures", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == first
    assert again.stdout == ran.stdout


def test_a_scenario_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    ran = bench("--only", "everything", folder=tmp_path)
    assert ran.returncode == 2
    assert "everything" in ran.stderr
    assert "single" in ran.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, "", "[]", '{"format": 1}'])
def test_a_file_that_is_no_result_is_not_reported(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    ran = bench("report", "result.json", folder=tmp_path)
    assert ran.returncode == 2
    assert "result.json cannot be read" in ran.stderr


def test_an_interpreter_is_named_by_its_version() -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    assert in_interpreter(sys.executable).label == f"Python {version}"


def test_an_interpreter_that_cannot_generate_load_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module named aiomooncake >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(ConfigError, match="no module named aiomooncake"):
        in_interpreter(str(python))
    with pytest.raises(ConfigError, match="cannot be run"):
        in_interpreter(str(tmp_path / "nothing"))
