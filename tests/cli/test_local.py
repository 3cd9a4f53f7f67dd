from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from .commands import on_terminal, run, started

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serves_the_keys_of_a_file_until_a_signal_and_leaves_nothing(number: int, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"a\nb\n")
    with started("local", "--keys-file", str(file)) as command:
        address = command.first_line()
        assert run("lookup", address, "a", "b", "c").stdout == b"yes\ta\nyes\tb\nno\tc\n"
        assert command.end(number) == (0, "", "")
        assert command.nothing_is_left()


def test_leaves_nothing_when_it_is_killed() -> None:
    with started("local") as command:
        assert command.first_line().startswith("127.0.0.1:")
        assert len(command.family()) > 1
        command.end(signal.SIGKILL)
        assert command.nothing_is_left()


def test_an_interrupt_while_it_starts_leaves_nothing() -> None:
    with started("local") as command:
        command.wait_for("mooncake_master")
        assert command.end(signal.SIGINT) == (0, "", "")
        assert command.nothing_is_left()


def test_ends_with_1_when_the_master_does() -> None:
    with started("local") as command:
        address = command.first_line()
        os.kill(command.wait_for(f"--rpc_port={address.rpartition(':')[2]} "), signal.SIGKILL)
        status, out, err = command.wait()
        assert (status, out) == (1, "")
        assert err.startswith("aiomooncake: error: the master ended by itself; its log ends with:\n  ")
        assert command.nothing_is_left()


def test_a_keys_file_that_is_not_there_is_a_usage_error() -> None:
    done = run("local", "--keys-file", "/nonexistent/keys")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"aiomooncake: error: cannot read keys from /nonexistent/keys: No such file or directory\n"


def test_a_segment_that_mooncake_would_refuse_is_a_usage_error() -> None:
    done = run("local", "--segment-size", "1")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--segment-size" in done.stderr


def test_without_the_library_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['mooncake'] = None\n")
    status, text = on_terminal("local", columns=200, PYTHONPATH=str(tmp_path), NO_COLOR="1")
    assert status == 2
    assert "no Mooncake is installed" in text
    assert "pip install 'aiomooncake[non-cuda]'" in text
