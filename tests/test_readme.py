"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES: list[tuple[str, str]] = re.findall(
    r"```python\n(import asyncio\n.*?)```\n\n```text\n(.*?)```", README, re.DOTALL
)


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_an_example_of_the_readme_prints_what_the_readme_says(code: str, output: str) -> None:
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == (output, "")


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (Path(__file__).parents[1] / link).exists()] == []
