"""One etcd member, asked about one key at a time through its JSON gateway (etcd 3.4 and later, plain HTTP).

The only module that needs httpx, which comes with the extra `ha`.
"""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import anyio

from ..errors import ConfigError

try:
    import httpx
except ImportError:
    httpx = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from ..target import Address

__all__ = ["Entry", "EtcdError", "EtcdMember", "open_http"]

# Seconds for a read, and for a watch to begin. A read needs the consent of most members, so one that is cut off from
# the others misses this as well as one that hangs.
_ANSWER_LIMIT = 2.0
# etcd takes requests, and so values, of at most 1.5 MiB (its --max-request-bytes).
_LARGEST_MESSAGE = 8 << 20


class EtcdError(Exception):
    """The member cannot be reached, hangs, refuses, or is no etcd; the message says which, but not its address."""


class Entry(NamedTuple):
    """What a key held at a revision of the store: `value` is None where it did not exist."""

    value: bytes | None
    revision: int


def open_http() -> httpx.AsyncHTTPTransport:
    """Connections to any number of members; their owner closes them, best by `async with`."""
    # Not httpx.AsyncClient, which logs each request at level INFO and keeps cookies. A proxy for the web is none for
    # etcd; and as no TLS is spoken, no certificates are loaded, which would hold up the loop for 40 ms.
    return httpx.AsyncHTTPTransport(verify=False, trust_env=False)


class EtcdMember:
    """It knows an address and holds nothing open."""

    def __init__(self, address: Address) -> None:
        """Name the member.

        Raises:
            ConfigError: httpx is not installed, or the address cannot stand in a URL.
        """
        if httpx is None:
            raise ConfigError("following the leader in etcd needs httpx: pip install 'aiomooncake[ha]'")
        try:
            self._url = httpx.URL(f"http://{address}/v3/")
        except httpx.InvalidURL as error:
            raise ConfigError(f"{str(address)!r} is no address of an etcd: {error}") from error
        self.address = address

    async def get(self, http: httpx.AsyncHTTPTransport, key: bytes) -> Entry:
        """What the key holds now, by consent of most members; within 2 s.

        Raises:
            EtcdError: see there.
        """
        with _explaining(), anyio.fail_after(_ANSWER_LIMIT):
            response = await self._post(http, "kv/range", {"key": _encode(key)})
            try:
                body = await response.aread()
            finally:
                await response.aclose()
        if response.status_code != httpx.codes.OK:
            raise EtcdError(f"status {response.status_code}: {_shortened(body)}")
        return _parse_range(body)

    async def watch(
        self, http: httpx.AsyncHTTPTransport, key: bytes, *, after: int, on_entry: Callable[[Entry], object]
    ) -> NoReturn:
        """Call `on_entry` with each change of the key from revision `after` + 1 on, in order.

        Of changes that etcd tells in one message, only the last. What `on_entry` raises ends the watch. A watch may be
        silent because nothing happens or because nothing gets through: whoever needs to know has to `get`.

        Raises:
            EtcdError: it ended, as it also does when that revision has been compacted; `get`, and watch from there.
        """
        create = {"create_request": {"key": _encode(key), "start_revision": str(after + 1)}}
        with _explaining(), anyio.fail_after(_ANSWER_LIMIT):
            response = await self._post(http, "watch", create)
        try:
            async for message in _messages(response):
                entry = _parse_watch(message)
                if entry is not None:
                    on_entry(entry)
        finally:
            await response.aclose()
        raise EtcdError("it ended the watch")

    async def _post(self, http: httpx.AsyncHTTPTransport, method: str, content: Any) -> httpx.Response:
        return await http.handle_async_request(httpx.Request("POST", self._url.join(method), json=content))


async def _messages(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of a streamed answer: each is a message."""
    rest = b""
    with _explaining():
        async for chunk in response.aiter_bytes():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line:
                    yield line
            if len(rest) > _LARGEST_MESSAGE:
                raise EtcdError(f"a message of more than {_LARGEST_MESSAGE} bytes: {_shortened(rest)}")
    if rest:
        yield rest  # of something that is no etcd; its words go into the error


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    """Turn failures of the network into EtcdError."""
    try:
        yield
    except TimeoutError as error:
        raise EtcdError(f"no answer for {_ANSWER_LIMIT} s") from error
    except httpx.NetworkError as error:
        raise EtcdError(_system_reason(error)) from error
    except httpx.HTTPError as error:
        raise EtcdError(str(error) or type(error).__name__) from error


def _system_reason(error: BaseException) -> str:
    """What the operating system said: the layers above it tell as little as "All connection attempts failed"."""
    layer: BaseException | None = error
    while layer is not None:
        if isinstance(layer, OSError) and layer.errno is not None:
            return str(layer)
        below = layer.__cause__ or layer.__context__
        layer = getattr(below, "exceptions", [below])[0]  # a group has one for each address of a name
    return str(error) or type(error).__name__


# What reading a value of another shape raises; RecursionError comes from json.
_MISSHAPEN = (AttributeError, LookupError, RecursionError, TypeError, ValueError)


def _parse_range(body: bytes) -> Entry:
    try:
        answer = json.loads(body)
        found = answer.get("kvs")
        return Entry(_value(found[0]) if found else None, int(answer["header"]["revision"]))
    except _MISSHAPEN as error:
        raise EtcdError(f"unexpected answer: {_shortened(body)}") from error


def _parse_watch(message: bytes) -> Entry | None:
    """The last change that a message tells; None when it tells none, as the one that confirms the watch."""
    try:
        result = json.loads(message)["result"]
        if not result.get("canceled"):
            events = result.get("events")
            return _parse_event(events[-1]) if events else None
    except _MISSHAPEN as error:
        raise EtcdError(f"unexpected answer: {_shortened(message)}") from error
    raise EtcdError(f"it ended the watch: {_shortened(message)}")


def _parse_event(event: Any) -> Entry:
    pair = event["kv"]
    return Entry(None if event.get("type") == "DELETE" else _value(pair), int(pair["mod_revision"]))


def _value(pair: Any) -> bytes:
    return base64.b64decode(pair.get("value", ""), validate=True)  # JSON of protobuf leaves out what is empty


def _encode(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _shortened(data: bytes, limit: int = 200) -> str:
    return repr(data[:limit]) if len(data) <= limit else f"{data[:limit]!r}…"
