"""What the package promises about its own shape: names that are exported and documented, imports that point one way."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import aiomooncake

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(aiomooncake.__file__).parent

# From the top down: a part imports what stands below it, and in its own line only itself.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("bench",),
    ("contrib",),
    ("blocking",),
    ("local", "testing"),
    ("connector",),
    ("engine",),
    ("hybrid", "notices"),
    ("layout", "predictor"),
    ("hashing",),
    ("chores", "coalescer"),
    ("batch", "deadlines"),
    ("transport",),
    ("wire", "target", "config", "stats"),
    ("errors", "keys", "reply", "_version"),
)
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}

# Parts and modules that compute and do nothing else.
PURE = (
    "wire",
    "layout",
    "hashing",
    "hybrid.plan",
    "hybrid.result",
    "hybrid.tracks",
    "predictor",
    "transport.session",
    "batch",
    "config",
    "errors",
    "keys",
    "reply",
    "stats",
    "target",
)
IMPURE = {
    "anyio",
    "asyncio",
    "concurrent",
    "http",
    "logging",
    "mooncake",
    "multiprocessing",
    "os",
    "queue",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "urllib.request",
    "uvloop",
}


class Module:
    """One source file; `name` is relative to the package: "wire.messages", or "" for the package itself."""

    def __init__(self, path: Path) -> None:
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.part = self.name.partition(".")[0]
        self.tree = ast.parse(path.read_text(), str(path))

    def imports(self) -> Iterator[tuple[str, str, int, bool]]:
        """(module, name, level, only for types) of every import; with `level`, relative as in the source."""
        only_types = {
            id(inner)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "", 0, id(node) in only_types) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield node.module or "", alias.name, node.level, id(node) in only_types

    def own_imports(self) -> Iterator[str]:
        """What is imported from this package, as "module.name" relative to it."""
        for module, name, level, _ in self.imports():
            if level:
                base = self.name.split(".") if self.is_package else self.name.split(".")[:-1]
                up = level - 1
                yield ".".join(filter(None, [*base[: len(base) - up], module, name]))
            elif module.partition(".")[0] == ROOT.name:
                yield ".".join(filter(None, [module.partition(".")[2], name]))

    def exports(self) -> list[str] | None:
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names: list[str] = ast.literal_eval(node.value)
                return names
        return None

    def definitions(self) -> dict[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
        return {
            node.name: node
            for node in self.tree.body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            # The command line calls its commands by their place in it.
            and not any(
                part in ast.unparse(mark) for mark in node.decorator_list for part in (".command(", ".callback(")
            )
        }


MODULES = {module.name: module for module in map(Module, sorted(ROOT.rglob("*.py")))}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def is_pure(name: str) -> bool:
    return any(name == pure or name.startswith(f"{pure}.") for pure in PURE)


def test_exports_are_sorted_and_all_that_is_public() -> None:
    unsorted, missing = [], []
    for name, module in MODULES.items():
        exported = module.exports() or []
        if exported != sorted(set(exported), key=lambda name: (not name.isupper(), name.islower(), name)):
            unsorted.append(name)
        if not name.endswith("_main"):  # programs that another process runs have no users
            missing += [f"{name}.{each}" for each in module.definitions() if each[0] != "_" and each not in exported]
    assert (unsorted, missing) == ([], [])


def test_exports_exist() -> None:
    missing = []
    for name, module in MODULES.items():
        if (exported := module.exports()) and name != "__main__":
            loaded = importlib.import_module(f"{ROOT.name}.{name}".rstrip("."))
            missing += [f"{name}.{each}" for each in exported if not hasattr(loaded, each)]
    assert missing == []


def test_whatever_is_exported_is_documented() -> None:
    undocumented = []
    for name, module in MODULES.items():
        if not ast.get_docstring(module.tree) and name != "_version":
            undocumented.append(name)
        for each, node in module.definitions().items():
            if each in (module.exports() or []):
                undocumented += [f"{name}.{part}" for part in without_docstring(node)]
    assert undocumented == []


def without_docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    if not ast.get_docstring(node):
        yield node.name
    for member in node.body if isinstance(node, ast.ClassDef) else []:
        if (
            isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef))
            and not member.name.startswith("_")
            and not ast.get_docstring(member)
            and not any(ast.unparse(mark).endswith((".setter", "overload")) for mark in member.decorator_list)
        ):
            yield f"{node.name}.{member.name}"


def test_every_part_has_a_place_in_the_layers() -> None:
    assert {module.part for module in MODULES.values()} - {"", *RANK} == set()


def test_imports_point_down() -> None:
    upward = []
    for name, module in MODULES.items():
        for imported in module.own_imports() if name else []:
            part = imported.partition(".")[0]
            if part != module.part and RANK[part] <= RANK[module.part]:
                upward.append(f"{name} imports {imported}")
    assert upward == []


def test_modules_share_no_private_names() -> None:
    private = [
        f"{name} imports {imported}"
        for name, module in MODULES.items()
        for imported in module.own_imports()
        if any(map(is_private, imported.split("."))) and not imported.startswith("_version")
    ]
    assert private == []


def test_pure_modules_import_nothing_that_waits_or_talks() -> None:
    impure = [
        f"{name} imports {imported}"
        for name, module in MODULES.items()
        if is_pure(name)
        for imported, each, level, only_types in module.imports()
        if not level and {imported.partition(".")[0], f"{imported}.{each}"} & IMPURE
        if not (only_types and name == "batch")  # a question carries its caller's future
    ]
    assert impure == []


def test_every_pure_module_exists() -> None:
    assert [pure for pure in PURE if pure not in MODULES] == []


def test_wire_imports_no_loop_no_socket_and_no_clock() -> None:
    wire = [module for module in MODULES.values() if module.part == "wire"]
    seen = {imported for module in wire for imported, _, level, _ in module.imports() if not level}
    assert seen <= {"__future__", "collections.abc", "contextlib", "hashlib", "struct", "typing"}


def test_importing_the_package_loads_no_extra_and_starts_nothing() -> None:
    program = """
import sys, threading, asyncio
import aiomooncake
extras = {"mooncake", "typer", "rich", "hdrh", "uvloop", "prometheus_client", "starlette", "pytest", "hypothesis"}
print(sorted(extras & set(sys.modules)), threading.active_count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[] 1\n", "")


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "py.typed").exists()
