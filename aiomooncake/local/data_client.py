"""The client that holds the data of a local cluster, in a process of its own.

`MooncakeDistributedStore.setup` and `close` keep the GIL for as long as they take, which is 90 s when the master is
dead: here that can only hold up a process made for it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, ConnectError, ConnectionLostError, StoreError
from ..wire.messages import check_keys
from .install import suggest_cure
from .process import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..wire.messages import Key
    from .install import Installation
    from .log import ProcessLog

__all__ = ["DataClient"]

_SCRIPT = Path(__file__).with_name("_data_client_main.py")


class DataClient:
    """Its process; starts importing at once. `setup` has to succeed before `put` and `remove`.

    Calls are sent one after another. A call that was cancelled is carried out all the same, and the next one waits
    for that. The owner has to call `reap` in the end.
    """

    def __init__(self, installation: Installation, log: ProcessLog) -> None:
        self._log = log
        self._last_id = 0
        self._calling = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._socket, theirs = socket.socketpair()
        try:
            self.process = GuardedProcess(
                [sys.executable, "-I", str(_SCRIPT), json.dumps(installation.python_path)],
                log=log,
                environment=installation.environment,
                stdin=theirs,
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    async def setup(self, address: str, segment_bytes: int) -> None:
        """Join the master at `address` and mount the segment. It may take 90 s with a dead master: bound it.

        Raises:
            ConfigError: `mooncake` cannot be imported.
            ConnectError: the client refused, or its process ended.
        """
        try:
            reply = await self._call("setup", address=address, segment_bytes=segment_bytes)
        except ConnectionLostError as error:
            raise ConnectError(f"{error}; {self._log.tail()}") from error
        if "error" in reply:
            cure = suggest_cure(reply["error"]) or "is it built for this Python?"
            raise ConfigError(f"the data-holding client cannot be imported ({reply['error']}): {cure}")
        if reply["code"]:
            raise ConnectError(
                f"the data-holding client could not join {address} with a segment of {segment_bytes} bytes: Mooncake"
                f" answered {reply['code']}. Client and master may be of different versions: master_binary in a wheel"
                f" that is unpacked whole gets the client from there; {self._log.tail()}"
            )

    async def put(self, keys: Sequence[Key], value: bytes) -> None:
        """Store `value` under each key; see `LocalCluster.put`."""
        await self._change("put", keys, value)

    async def remove(self, keys: Sequence[Key]) -> None:
        """Remove the keys by force; see `LocalCluster.remove`."""
        await self._change("remove", keys)

    def reap(self) -> None:
        """End the process, without a goodbye to the master, and wait for that without the loop."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._socket.close()
        self.process.reap()

    async def _change(self, op: str, keys: Sequence[Key], value: bytes = b"") -> None:
        check_keys(keys)
        raw = [key.encode() if isinstance(key, str) else key for key in keys]
        reply = await self._call(op, value, keys=[key.decode("latin-1") for key in raw])
        if reply["code"]:
            raise StoreError(reply["code"], key=keys[reply["done"]])

    async def _call(self, op: str, value: bytes = b"", **arguments: Any) -> dict[str, Any]:
        async with self._calling:
            self._last_id = request_id = self._last_id + 1
            try:
                if self._streams is None:
                    self._streams = await asyncio.open_unix_connection(sock=self._socket)
                reader, writer = self._streams
                request = {"id": request_id, "op": op, "value_bytes": len(value), **arguments}
                writer.write(json.dumps(request).encode() + b"\n" + value)  # in one piece: cancelling cannot split it
                await writer.drain()
                while line := await reader.readline():
                    reply: dict[str, Any] = json.loads(line)
                    if reply["id"] == request_id:  # else of a call that was cancelled
                        return reply
            except OSError as error:
                raise ConnectionLostError(f"the data-holding client ended before it was asked to {op}") from error
            raise ConnectionLostError(f"the data-holding client ended before it had answered to {op}")
