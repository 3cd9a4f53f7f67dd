from __future__ import annotations

import subprocess
import sys

import pytest

import aiomooncake

from .commands import run

COMMANDS = ("demo", "doctor", "explain", "local", "lookup")


def test_version_is_the_packages() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"aiomooncake {aiomooncake.__version__}\n".encode())


def test_help_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(f"\n  {command} " in done.stdout.decode() for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_an_example_a_line_and_its_exit_status(command: str) -> None:
    lines = run(command, "--help").stdout.decode().splitlines()
    assert any(line.startswith(f"    aiomooncake {command}") for line in lines)
    assert "  Exit status:" in lines
    assert any(line.startswith("    0  ") for line in lines)


def test_an_unknown_command_is_a_usage_error() -> None:
    done = run("lokup")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"lokup" in done.stderr


def test_without_its_extra_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['rich'] = None; from aiomooncake.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("aiomooncake: error: the command line needs rich: pip install 'aiomooncake[cli]'")
    assert done.stderr.count("\n") == 1
