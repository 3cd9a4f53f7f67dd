"""Run the command line as users do: as a process, in a pipe or on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LIMIT", "Started", "on_terminal", "run", "started", "without_styles"]

LIMIT = 60
"""Seconds until a command that does not end fails its test."""

_MARK = "AIOMOONCAKE_TEST_RUN"
_COMMAND = [sys.executable, "-W", "error", "-m", "aiomooncake"]


def _environment(**variables: str) -> dict[str, str]:
    neutral = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")}
    return {**neutral, "TERM": "xterm-256color", **variables}


def run(*arguments: str | bytes, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end with its streams in pipes; keywords are environment variables."""
    environment = _environment(**variables)
    return subprocess.run(
        [*_COMMAND, *arguments], input=stdin, capture_output=True, env=environment, timeout=LIMIT, check=False
    )


def on_terminal(*arguments: str, columns: int, **variables: str) -> tuple[int, str]:
    """Run a command to its end on a terminal of that width: its exit status, and all that it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(
        [*_COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=_environment(**variables)
    ) as process:
        os.close(theirs)
        written = b""
        with suppress(OSError):  # how Linux says that nobody holds the other end any more
            while data := os.read(ours, 65536):
                written += data
        os.close(ours)
        return process.wait(LIMIT), written.decode().replace("\r\n", "\n")


def without_styles(text: str) -> str:
    """Without what makes it bold or coloured."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Started:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self.process = process
        self._mark = f"{_MARK}={mark}".encode()

    def first_line(self) -> str:
        """What it printed first; "" if it ended without."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def end(self, number: int) -> tuple[int, str, str]:
        """Signal it: its exit status, and the rest of stdout and stderr."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str, str]:
        """As `end`, without a signal."""
        out, err = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, out.decode(), err.decode()

    def family(self) -> dict[int, str]:
        """Command lines by pid of all processes that came from it, itself included."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if self._mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def wait_for(self, part: str) -> int:
        """The pid of a process of the family with `part` in its command line, once there is one."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            for pid, command in self.family().items():
                if part in command and "_guard_main" not in command:
                    return pid
            time.sleep(0.01)
        raise AssertionError(f"no process with {part!r} in {self.family()}")

    def feed(self, fifo: Path, data: bytes) -> int:
        """Give it `data` through a pipe that it reads, and wait until it waits for more: a descriptor to close."""
        deadline = time.monotonic() + LIMIT
        writer = -1
        while time.monotonic() < deadline:
            if writer < 0:
                with suppress(OSError):  # ENXIO: nobody reads yet
                    writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
                    os.write(writer, data)
            elif fcntl.ioctl(writer, termios.FIONREAD, bytes(4)) == bytes(4):
                return writer
            time.sleep(0.01)
        raise AssertionError(f"{fifo} was not read; {self.family()}")

    def nothing_is_left(self) -> bool:
        """Whether the whole family is gone, or soon is."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if not self.family():
                return True
            time.sleep(0.01)
        return False


@contextmanager
def started(*arguments: str, **variables: str) -> Iterator[Started]:
    """A command that runs, for as long as the body takes at most."""
    mark = uuid.uuid4().hex
    pipe = subprocess.PIPE
    environment = _environment(**{_MARK: mark}, **variables)
    with subprocess.Popen([*_COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        try:
            yield Started(process, mark)
        finally:
            process.kill()
