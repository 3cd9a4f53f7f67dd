from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .commands import LIMIT, on_terminal, run, started, without_styles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..conftest import SharedCluster

STORED = [b"cli lookup a", b"cli lookup b", b"cli-lookup-\xff\xfe"]
MISSING = b"cli lookup nowhere"


@pytest.fixture(scope="module")
def master(cluster: SharedCluster) -> str:
    asyncio.run(cluster.put(STORED))
    return cluster.address


@pytest.fixture
def silent_peer() -> Iterator[socket.socket]:
    """A server that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT)
        yield server


@pytest.fixture
def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return address_of(server)


def test_ends_with_0_when_every_key_exists(master: str) -> None:
    done = run("lookup", master, *STORED)
    assert done.stdout == b"".join(b"yes\t%s\n" % key for key in STORED)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ends_with_1_when_a_key_is_missing(master: str) -> None:
    done = run("lookup", master, STORED[0], MISSING)
    assert done.stdout == b"yes\tcli lookup a\nno\tcli lookup nowhere\n"
    assert (done.returncode, done.stderr) == (1, b"")


def test_reads_keys_from_arguments_stdin_and_file_in_that_order(master: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"in file\r\n\n" + STORED[2])
    done = run("lookup", master, "first", "-", "--file", str(file), stdin=b"on stdin\n" + STORED[1] + b"\n")
    expected = [b"no\tfirst", b"no\ton stdin", b"yes\t" + STORED[1], b"no\tin file", b"yes\t" + STORED[2], b""]
    assert done.stdout.split(b"\n") == expected


def test_a_dash_as_file_is_stdin(master: str) -> None:
    assert run("lookup", master, "-f", "-", stdin=STORED[0]).stdout == b"yes\t" + STORED[0] + b"\n"


def test_prefix_counts_keys_up_to_the_first_gap(master: str) -> None:
    done = run("lookup", master, "--prefix", *STORED[:2], MISSING, STORED[2])
    assert (done.returncode, done.stdout) == (1, b"2\n")
    done = run("lookup", master, "--prefix", *STORED)
    assert (done.returncode, done.stdout) == (0, b"3\n")


def test_json_has_every_key_in_order_with_its_answer(master: str) -> None:
    done = run("lookup", master, "--json", STORED[2], MISSING, STORED[2])
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert (answer["found"], answer["asked"]) == (2, 3)
    keys = [(pair["key"].encode(errors="surrogateescape"), pair["exists"]) for pair in answer["keys"]]
    assert keys == [(STORED[2], True), (MISSING, False), (STORED[2], True)]


def test_json_of_a_prefix(master: str) -> None:
    done = run("lookup", master, "--json", "--prefix", STORED[0], MISSING)
    assert json.loads(done.stdout) == {"prefix": 1, "asked": 2}


def test_several_masters_and_a_tenant_are_understood(master: str, closed_port: str) -> None:
    assert run("lookup", f"mooncake://{closed_port},{master}?tenant=default", STORED[0]).returncode == 0


@pytest.mark.parametrize("arguments", [(), ("-",), ("--file", "/nonexistent/keys")])
def test_no_keys_is_a_usage_error(master: str, arguments: tuple[str, ...]) -> None:
    done = run("lookup", master, *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert is_one_line(done.stderr, "keys")


def test_a_target_that_cannot_be_read_is_a_usage_error() -> None:
    done = run("lookup", "nonsense", "key")
    assert done.returncode == 2
    assert is_one_line(done.stderr, "'nonsense'")


def test_a_master_that_is_away_ends_it_with_3(closed_port: str) -> None:
    done = run("lookup", closed_port, "key")
    assert (done.returncode, done.stdout) == (3, b"")
    assert is_one_line(done.stderr, closed_port)


def test_a_peer_that_says_nothing_ends_it_with_3(silent_peer: socket.socket) -> None:
    done = run("lookup", address_of(silent_peer), "key", "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (3, b"")
    assert is_one_line(done.stderr, address_of(silent_peer))


def test_a_reader_that_goes_away_ends_it_quietly(master: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n".join(map(str, range(100_000))))
    command = [sys.executable, "-m", "aiomooncake", "lookup", master, "-f", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"no\t0\n"
        process.stdout.close()
        assert process.stderr.read() == b""


def test_an_interrupt_while_it_reads_keys_is_not_taken_for_a_missing_key(master: str, tmp_path: Path) -> None:
    pipe = tmp_path / "keys"
    os.mkfifo(pipe)
    with started("lookup", master, "--file", str(pipe)) as command:
        writer = command.feed(pipe, b"first\n")
        try:
            status, out, err = command.end(signal.SIGINT)
        finally:
            os.close(writer)
    assert (status, out, err) == (130, "", "")


def test_an_interrupt_while_it_waits_for_the_master_ends_it(silent_peer: socket.socket) -> None:
    with started("lookup", address_of(silent_peer), "key", "--timeout", "600") as command:
        connection, _ = silent_peer.accept()
        with connection:
            status, out, err = command.end(signal.SIGTERM)
    assert (status, out, err) == (143, "", "")


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_terminal_gets_a_table_that_fits(master: str, columns: int) -> None:
    long = "x" * 120
    status, text = on_terminal("lookup", master, STORED[0].decode(), long, columns=columns)
    assert status == 1
    assert "\x1b[" in text
    lines = without_styles(text).splitlines()
    assert lines[0].split() == ["stored", "key"]
    assert lines[1].rstrip() == "yes     cli lookup a"
    assert lines[-1].startswith("1 of 2 stored (")
    assert max(map(len, lines)) <= columns
    assert "".join(line[8:].strip() for line in lines[2:-1]) == long


def test_a_terminal_gets_no_colours_with_no_color(master: str) -> None:
    _, text = on_terminal("lookup", master, STORED[0].decode(), columns=80, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)


def test_a_prefix_on_a_terminal_is_a_sentence(master: str) -> None:
    _, text = on_terminal("lookup", master, STORED[0].decode(), "x", "--prefix", columns=80)
    assert without_styles(text).startswith("1 of 2 keys from the first on (")


def address_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def is_one_line(stderr: bytes, part: str) -> bool:
    text = stderr.decode()
    return text.startswith("aiomooncake: error: ") and text.count("\n") == 1 and text.endswith("\n") and part in text
