"""Where a master is: parsing of what `connect` is given."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl

from .errors import ConfigError

__all__ = ["Address", "Target", "parse_address", "parse_target"]

_FORMS = (
    'give "host:port", "mooncake://host:port[,host:port…][?tenant=NAME]"'
    ' or "etcd://host:port[,host:port…]/cluster[?tenant=NAME]"'
)


class Address(NamedTuple):
    """One master's RPC port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Target(NamedTuple):
    """Who is asked, and the tenant whose keys are meant.

    `addresses` are the masters to try, in order; or, if `cluster` is given, the etcd that knows the leader of the
    masters with this cluster id.
    """

    addresses: tuple[Address, ...]
    tenant: str
    cluster: str | None = None


def parse_target(text: str) -> Target:
    """Read one of the three forms of a target.

    Raises:
        ConfigError: it is none of them; the message says what is wrong with it.
    """
    if not isinstance(text, str):
        raise ConfigError(f"target is {text!r}; {_FORMS}")
    if not text.isprintable():
        raise ConfigError(f"target {text!r} has an unprintable character; in a tenant write it as %XX")
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Target((_address(text, text),), "default")
    if scheme not in ("mooncake", "etcd"):
        raise ConfigError(f"target {text!r} has the unknown scheme {scheme!r}; {_FORMS}")
    if "#" in rest:
        raise ConfigError(f"target {text!r} has a path or fragment; {_FORMS}")
    # Not urlsplit: what it takes in brackets, behind another address, depends on Python's version.
    path, _, query = rest.partition("?")
    servers, _, cluster = path.partition("/")
    if scheme == "mooncake" and cluster:
        raise ConfigError(f"target {text!r} has a path or fragment; {_FORMS}")
    if scheme == "etcd" and not cluster:
        raise ConfigError(f"target {text!r} names no cluster; Mooncake's default is mooncake_cluster; {_FORMS}")
    addresses = tuple(_address(part, text) for part in servers.split(","))
    return Target(addresses, _tenant(query, text), cluster or None)


def _tenant(query: str, text: str) -> str:
    try:
        options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError as error:
        raise ConfigError(f"target {text!r} cannot be read ({error}); {_FORMS}") from error
    for name, _ in options:
        if name != "tenant":
            raise ConfigError(f"target {text!r} has the unknown option {name!r}; {_FORMS}")
    if len(options) > 1:
        raise ConfigError(f"target {text!r} names {len(options)} tenants; {_FORMS}")
    return options[0][1] if options else "default"


def parse_address(text: str) -> Address:
    """Read "host:port"; raises ConfigError as `parse_target` does."""
    return _address(text, text)


def _address(part: str, text: str) -> Address:
    host, separator, port = part.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    named = _is_host(host) and (bracketed or ":" not in host)
    if not separator or not named or not (port.isascii() and port.isdigit()):
        raise ConfigError(f"target {text!r}: {part!r} is no host:port; {_FORMS}")
    # Python refuses to read numbers of thousands of digits.
    if len(port) > 5 or not 0 < int(port) < 65536:
        raise ConfigError(f"target {text!r}: port {port} is not between 1 and 65535")
    return Address(host, int(port))


def _is_host(host: str) -> bool:
    try:
        # The resolver encodes it so, and what fails there is no OSError.
        return bool(host.encode("idna")) and not any(character in " /?#@[]" for character in host)
    except UnicodeError:
        return False
