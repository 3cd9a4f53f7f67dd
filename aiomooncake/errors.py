"""Every exception that the package raises.

AioMooncakeError
  ConfigError (also ValueError)       an option or target is not usable
  ProtocolError                       never raised itself
    LocalProtocolError                we were asked to send what the wire forbids
      InvalidKeyError (also TypeError, ValueError)
    RemoteProtocolError               the peer broke framing or types
  ConnectError (also OSError)         no connection to the master could be made
  ConnectionLostError (also OSError)  the connection ended before the answer came
  ClosedError (also RuntimeError)     used after `aclose`
  WrongLoopError (also RuntimeError)  used from another event loop, thread or process
  RequestTimeout (also TimeoutError)  the deadline passed
  OverloadedError                     admission refused; nothing was sent
  RpcError                            the RPC framework answered with an error
  StoreError                          Mooncake answered with an error code for a key

Cancellation is never translated. Every waiter gets an exception object of its own; what several of them have
in common is shared as `__cause__`.
"""

from __future__ import annotations

import copy
from typing import TypeVar

__all__ = [
    "AioMooncakeError",
    "ClosedError",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "InvalidKeyError",
    "LocalProtocolError",
    "OverloadedError",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestTimeout",
    "RpcError",
    "StoreError",
    "WrongLoopError",
    "fresh",
]


class AioMooncakeError(Exception):
    """Root of everything that this package raises on its own account."""


class ConfigError(AioMooncakeError, ValueError):
    """An option, target or layout is not usable; the message names the value received and what is allowed."""


class ProtocolError(AioMooncakeError):
    """Abstract: something does not fit the master's RPC protocol."""


class LocalProtocolError(ProtocolError):
    """We were asked to send what the wire cannot carry. Nothing was sent; the connection is intact."""


class InvalidKeyError(LocalProtocolError, TypeError, ValueError):
    """A key is neither `str` nor `bytes`, or is a `str` that has no UTF-8 form (a lone surrogate)."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that break framing or types. That connection is finished; a new question reconnects.

    Usual cause: the address is not a Mooncake master's RPC port but one that speaks HTTP or TLS, or a proxy's.
    """


class ConnectError(AioMooncakeError, OSError):
    """No connection to the master could be made; the message names address and cause. Safe to ask again."""


class ConnectionLostError(AioMooncakeError, OSError):
    """The connection ended before the answer came. Safe to ask again: existence has no side effect but a lease."""


class ClosedError(AioMooncakeError, RuntimeError):
    """The engine was closed, before the question or while it waited."""


class WrongLoopError(AioMooncakeError, RuntimeError):
    """The engine belongs to another event loop, thread or process. Connect a new one where you are."""


class RequestTimeout(AioMooncakeError, TimeoutError):
    """The deadline passed; `phase` says where the question was: "queued", "connecting" or "awaiting reply"."""

    def __init__(self, message: str, *, phase: str = "awaiting reply") -> None:
        super().__init__(message)
        self.phase = phase


class OverloadedError(AioMooncakeError):
    """`max_pending_keys` keys are waiting and `overload="raise"` was chosen. Nothing was sent."""


# coro_rpc's `errc`, by position (yalantinglibs, include/ylt/coro_rpc/impl/errno.h).
_RPC_ERROR_NAMES = (
    "ok",
    "io_error",
    "not_connected",
    "timed_out",
    "invalid_rpc_arguments",
    "address_in_used",
    "bad_address",
    "open_error",
    "listen_error",
    "operation_canceled",
    "rpc_throw_exception",
    "function_not_registered",
    "protocol_error",
    "unknown_protocol_version",
    "message_too_large",
    "server_has_ran",
    "invalid_rpc_result",
    "serial_number_conflict",
)


class RpcError(AioMooncakeError):
    """The RPC framework answered with an error instead of running the call. The connection stays usable."""

    def __init__(self, code: int, detail: str = "") -> None:
        self.code = code
        self.name = _RPC_ERROR_NAMES[code] if 0 <= code < len(_RPC_ERROR_NAMES) else "unknown"
        self.detail = detail
        super().__init__(f"the master's RPC layer answered error {code} ({self.name}){': ' + detail if detail else ''}")

    def __reduce__(self) -> tuple[type[RpcError], tuple[int, str]]:
        return type(self), (self.code, self.detail)


# Mooncake's ErrorCode, as far as an existence lookup can meet it (mooncake-store/include/types.h).
_STORE_ERROR_NAMES = {
    -1: "INTERNAL_ERROR",
    -600: "INVALID_PARAMS",
    -704: "OBJECT_NOT_FOUND",
    -706: "OBJECT_HAS_LEASE",
    -900: "RPC_FAIL",
    -901: "RPC_TIMEOUT",
    -1010: "UNAVAILABLE_IN_CURRENT_STATUS",
    -1011: "UNAVAILABLE_IN_CURRENT_MODE",
    -1701: "TENANT_NOT_REGISTERED",
}


class StoreError(AioMooncakeError):
    """Mooncake answered an error code for a key: neither a hit nor a miss.

    `code` is Mooncake's number (kept also when unknown), `name` its symbol, `key` the first key concerned,
    `count` how many keys of the question got an error.
    """

    def __init__(self, code: int, *, key: str | bytes | None = None, count: int = 1) -> None:
        self.code = code
        self.name = _STORE_ERROR_NAMES.get(code, "unknown code")
        self.key = key
        self.count = count
        where = "" if key is None else f" for key {_shorten(key)}"
        more = f" and {count - 1} more" if count > 1 else ""
        super().__init__(f"Mooncake answered {code} ({self.name}){where}{more}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_store_error, (type(self), self.code, self.key, self.count)


def _rebuild_store_error(cls: type[StoreError], code: int, key: str | bytes | None, count: int) -> StoreError:
    return cls(code, key=key, count=count)


_E = TypeVar("_E", bound=AioMooncakeError)


def fresh(error: _E) -> _E:
    """An exception like `error`, for one more waiter: tracebacks and notes of one must not grow on another's."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    if "__notes__" in vars(error):
        vars(twin)["__notes__"] = list(vars(error)["__notes__"])
    return twin


def _shorten(key: str | bytes, limit: int = 96) -> str:
    text = repr(key[: limit + 1])
    return text if len(key) <= limit else f"{text[:limit]}… ({len(key)} long)"
