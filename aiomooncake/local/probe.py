"""Short questions to a master: does it serve, and what does its admin HTTP say?"""

from __future__ import annotations

import asyncio
import http.client

import anyio.to_thread

from ..errors import RemoteProtocolError
from ..wire.coro_rpc import FrameDecoder, encode_request
from ..wire.messages import MAX_MESSAGE, SERVICE_READY, decode_service_ready

__all__ = ["admin_get", "is_serving"]


async def is_serving(port: int) -> bool:
    """Whether a master on this loopback port answers ServiceReady with yes. It may hang: bound it.

    A connection alone proves nothing, since the kernel accepts for a process that is stopped.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(encode_request(0, SERVICE_READY, b""))
        decoder = FrameDecoder(MAX_MESSAGE)
        while data := await reader.read(MAX_MESSAGE):
            for frame in decoder.feed(data):
                return frame.error == 0 and decode_service_ready(frame.body).code == 0
    except (OSError, RemoteProtocolError):
        pass
    finally:
        writer.transport.abort()
    return False


async def admin_get(port: int, path: str, *, timeout: float) -> bytes:
    """The body of `path` on the admin HTTP of a master on loopback; `timeout` seconds may pass between its bytes.

    Raises:
        OSError: it cannot be reached, is silent, or answers with another status than 200.
    """
    return await anyio.to_thread.run_sync(_admin_get, port, path, timeout, abandon_on_cancel=True)


def _admin_get(port: int, path: str, timeout: float) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {error!r}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise OSError(f"{path} was answered with status {response.status}")
    return body
