"""A check that no test of the engine leaves a connection behind."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def open_connections() -> set[str]:
    """This process's TCP sockets, listening ones included. (Loops have Unix sockets of their own.)"""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(fd))) as sock:
                    if sock.family == socket.AF_INET:
                        found.add(name)
    return found


@pytest.fixture
async def no_leaked_sockets(anyio_backend: object) -> AsyncIterator[None]:
    """Fail the test when it leaves a socket open. Closing takes a loop some turns."""
    before = open_connections()
    yield
    with anyio.move_on_after(5):
        while open_connections() - before:
            await anyio.sleep(0.001)
    assert not open_connections() - before
