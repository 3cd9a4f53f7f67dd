"""Layouts from files and from running SGLang servers."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread

from ..errors import ConfigError, ConnectError
from ..layout import Layout, SGLangPool, VLLMGroup

__all__ = ["build_layout", "load_layout"]

_ENDPOINT = "/get_hicache_l3_cache_layout"
_ENGINES: dict[str, Callable[..., Layout]] = {
    "sglang": Layout.sglang,
    "vllm": Layout.vllm,
    "lmcache": Layout.lmcache,
}
# Options whose entries are more than names, and what makes them.
_ENTRIES: dict[str, Callable[..., object]] = {"pools": SGLangPool, "groups": VLLMGroup}


async def load_layout(source: str, *, bigram: bool, timeout: float) -> Layout:
    """The layout that a file or URL describes; see `build_layout`.

    Args:
        source: a path, or the http(s) URL of an SGLang server, with or without the path of its layout endpoint.
        bigram: see `Layout.from_sglang`.
        timeout: seconds that the server may take.

    Raises:
        ConfigError: it cannot be read, is no JSON, or describes no layout.
        ConnectError: the server does not answer.
    """
    if source.startswith(("http://", "https://")):
        text = await anyio.to_thread.run_sync(partial(_download, source, timeout), abandon_on_cancel=True)
    else:
        try:
            text = await anyio.Path(source).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read a layout from {source}: {error.strerror}") from error
    try:
        description = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source} holds no JSON ({error}), so no layout") from error
    return build_layout(description, bigram=bigram)


def build_layout(description: Any, *, bigram: bool) -> Layout:
    """The layout of decoded JSON.

    Args:
        description: what SGLang's endpoint answers, in each form that `Layout.from_sglang` takes; or an object with
            one member "sglang", "vllm" or "lmcache", whose value has the options of the `Layout` method of that name.
        bigram: see `Layout.from_sglang`.

    Raises:
        ConfigError: it describes no layout.
    """
    if not isinstance(description, Mapping) or len(description) != 1 or not set(description) <= set(_ENGINES):
        return Layout.from_sglang(description, bigram=bigram)
    [(engine, options)] = description.items()
    if not isinstance(options, Mapping):
        raise ConfigError(f"the layout's {engine!r} must be an object of options, not {options!r}")
    try:
        given = {name: _entries(name, value) for name, value in options.items()}
        if bigram:
            given["bigram"] = True
        return _ENGINES[engine](**given)
    except TypeError as error:
        raise ConfigError(f"the layout's options do not fit Layout.{engine}: {error}") from error


def _entries(name: str, value: Any) -> Any:
    make = _ENTRIES.get(name)
    if make is None or not isinstance(value, list):
        return value
    return [make(**entry) if isinstance(entry, Mapping) else entry for entry in value]


def _download(url: str, timeout: float) -> bytes:
    if urlsplit(url).path in ("", "/"):
        url = url.rstrip("/") + _ENDPOINT
    try:
        with urllib.request.urlopen(url, timeout=timeout) as reply:  # the scheme was checked
            body: bytes = reply.read()
    except (OSError, ValueError) as error:  # the latter: what is no URL behind its scheme
        raise ConnectError(f"no layout from {url}: {error}") from error
    return body
