"""Where a master is: parsing of what `connect` is given."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from .errors import ConfigError

__all__ = ["Address", "Target", "parse_target"]

_FORMS = 'give "host:port" or "mooncake://host:port[,host:port…][?tenant=NAME]"'


class Address(NamedTuple):
    """One master's RPC port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Target(NamedTuple):
    """The masters to try, in order, and the tenant whose keys are meant."""

    addresses: tuple[Address, ...]
    tenant: str


def parse_target(text: str) -> Target:
    """Read "host:port" or "mooncake://host:port,host:port?tenant=NAME".

    Raises:
        ConfigError: it is neither; the message says what is wrong with it.
    """
    if not isinstance(text, str):
        raise ConfigError(f"target is {text!r}; {_FORMS}")
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Target((_address(text, text),), "default")
    if scheme != "mooncake":
        raise ConfigError(f"target {text!r} has the unknown scheme {scheme!r}; {_FORMS}")
    try:
        parts = urlsplit(f"//{rest}")
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise ConfigError(f"target {text!r} cannot be read ({error}); {_FORMS}") from error
    if parts.path not in ("", "/") or parts.fragment:
        raise ConfigError(f"target {text!r} has a path or fragment; {_FORMS}")
    tenant = query.pop("tenant", "default")
    if query:
        raise ConfigError(f"target {text!r} has the unknown option {next(iter(query))!r}; {_FORMS}")
    try:
        tenant.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"tenant {tenant!r} has no UTF-8 form") from error
    return Target(tuple(_address(part, text) for part in parts.netloc.split(",")), tenant)


def _address(part: str, text: str) -> Address:
    host, separator, port = part.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not separator or not host or (":" in host and not bracketed) or not (port.isascii() and port.isdigit()):
        raise ConfigError(f"target {text!r}: {part!r} is no host:port; {_FORMS}")
    if not 0 < int(port) < 65536:
        raise ConfigError(f"target {text!r}: port {port} is not between 1 and 65535")
    return Address(host, int(port))
