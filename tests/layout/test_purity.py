from __future__ import annotations

import ast
from pathlib import Path

import pytest

import aiomooncake.hashing
import aiomooncake.layout

IMPURE = {"anyio", "asyncio", "os", "random", "socket", "subprocess", "threading", "time", "uvloop"}
SOURCES = [
    path for package in (aiomooncake.layout, aiomooncake.hashing) for path in Path(package.__path__[0]).glob("*.py")
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_layouts_and_hashes_import_nothing_that_waits_or_reads(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
    assert not imported & IMPURE
