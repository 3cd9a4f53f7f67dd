"""The JSON gateway of an etcd that tells of a change when asked, and in a watch only what the test says."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from aiomooncake.target import Address

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

__all__ = ["ScriptedEtcd", "address_of", "event", "http_answer"]


class ScriptedEtcd:
    """A script for `ScriptedPeer`.

    Attributes:
        value: what the key holds.
        revision: the revision at which it does.
        watches: how many watches were begun.
    """

    def __init__(self, value: bytes | None = None, *, messages: Sequence[bytes] = ()) -> None:
        """With the messages that each watch tells once it is confirmed."""
        self.value = value
        self.revision = 1
        self.watches = 0
        self._messages = messages

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert length is not None
            await reader.readexactly(int(length[1]))
            if head.startswith(b"POST /v3/watch "):
                self.watches += 1
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for message in (b'{"result":{"created":true}}', *self._messages):
                    writer.write(b"%x\r\n%s\n\r\n" % (len(message) + 1, message))
            else:
                writer.write(http_answer(self._range_answer()))

    def _range_answer(self) -> bytes:
        answer: dict[str, Any] = {"header": {"revision": str(self.revision)}}
        if self.value is not None:
            answer["kvs"] = [{"value": base64.b64encode(self.value).decode()}]
        return json.dumps(answer).encode()


def event(value: bytes | None, revision: int) -> dict[str, Any]:
    """A change as etcd writes it."""
    pair = {"key": "eA==", "mod_revision": str(revision)}
    if value is None:
        return {"type": "DELETE", "kv": pair}
    return {"kv": {**pair, "value": base64.b64encode(value).decode()}}


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    """A whole answer."""
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def address_of(text: str) -> Address:
    """The Address of "host:port"."""
    host, _, port = text.rpartition(":")
    return Address(host, int(port))
