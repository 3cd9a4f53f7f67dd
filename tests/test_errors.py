from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re
import sys

import pytest

from aiomooncake import errors
from aiomooncake.errors import (
    AioMooncakeError,
    ClosedError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    InvalidKeyError,
    LocalProtocolError,
    OverloadedError,
    RemoteProtocolError,
    RequestTimeout,
    RpcError,
    StoreError,
    WrongLoopError,
    fresh,
)

ERRORS: list[AioMooncakeError] = [
    AioMooncakeError("message"),
    ConfigError("message"),
    LocalProtocolError("message"),
    InvalidKeyError("message"),
    RemoteProtocolError("message"),
    ConnectError("message"),
    ConnectionLostError("message"),
    ClosedError("message"),
    WrongLoopError("message"),
    RequestTimeout("message"),
    RequestTimeout("message", phase="queued"),
    OverloadedError("message"),
    RpcError(4),
    RpcError(11, "no such function"),
    RpcError(200, "é"),
    StoreError(-600),
    StoreError(-600, key="key", count=3),
    StoreError(12345, key=b"\xff" * 1000),
]
every_error = pytest.mark.parametrize("error", ERRORS, ids=repr)

# What belongs to an exception object's own life and not to what it says.
_OWN_LIFE = ("__notes__",)


def says(error: BaseException) -> tuple[object, ...]:
    state = {name: value for name, value in vars(error).items() if name not in _OWN_LIFE}
    return type(error), error.args, str(error), repr(error), state


def classes() -> list[type[AioMooncakeError]]:
    named = (getattr(errors, name) for name in errors.__all__)
    return [each for each in named if inspect.isclass(each) and issubclass(each, AioMooncakeError)]


def test_the_tree_is_the_one_drawn_in_the_docstring() -> None:
    drawn: dict[str, set[type]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if not (
            found := re.match(r"(?P<indent> *)(?P<name>\w+Error|RequestTimeout)(?: \(also (?P<also>[^)]*)\))?", line)
        ):
            continue
        depth = len(found["indent"]) // 2
        above[depth:] = [found["name"]]
        bases = {getattr(builtins, name) for name in (found["also"] or "").split(", ") if name}
        drawn[found["name"]] = bases | {getattr(errors, above[depth - 1]) if depth else Exception}
    assert drawn == {each.__name__: set(each.__bases__) for each in classes()}


def test_every_class_of_errors_is_public_and_says_when_it_is_raised() -> None:
    defined = {
        name for name, each in vars(errors).items() if inspect.isclass(each) and each.__module__ == errors.__name__
    }
    assert defined == {each.__name__ for each in classes()}
    for each in classes():
        assert each.__doc__


def test_every_class_is_tried_here_but_the_one_that_is_never_raised() -> None:
    assert {each.__name__ for each in classes()} - {type(error).__name__ for error in ERRORS} == {"ProtocolError"}


@every_error
def test_an_error_survives_pickling_and_copying(error: AioMooncakeError) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert says(pickle.loads(pickle.dumps(error, protocol))) == says(error)
    assert says(copy.copy(error)) == says(error)
    assert says(copy.deepcopy(error)) == says(error)


@every_error
def test_a_fresh_error_says_the_same_and_is_another_object(error: AioMooncakeError) -> None:
    cause = OSError("cause")
    error = copy.copy(error)
    error.__cause__ = cause
    twin = fresh(error)
    assert twin is not error
    assert says(twin) == says(error)
    assert twin.__cause__ is cause
    assert says(fresh(twin)) == says(error)


@every_error
def test_what_grows_on_a_fresh_error_does_not_grow_on_the_other(error: AioMooncakeError) -> None:
    try:
        raise copy.copy(error)
    except AioMooncakeError as raised:
        original = raised
    twin = fresh(original)
    assert original.__traceback__ is not None
    assert twin.__traceback__ is None
    with pytest.raises(type(error)):
        raise twin
    twin.later = 1  # type: ignore[attr-defined]
    assert not hasattr(original, "later")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes since Python 3.11")
@every_error
def test_notes_are_taken_over_and_then_each_ones_own(error: AioMooncakeError) -> None:
    original = copy.copy(error)
    original.add_note("common")  # type: ignore[attr-defined,unused-ignore]
    twin, other = fresh(original), fresh(original)
    twin.add_note("mine")  # type: ignore[attr-defined,unused-ignore]
    notes = [vars(each)["__notes__"] for each in (original, twin, other)]
    assert notes == [["common"], ["common", "mine"], ["common"]]


def test_errors_are_caught_by_the_builtin_names_that_people_use() -> None:
    assert issubclass(ConnectError, OSError)
    assert issubclass(ConnectionLostError, OSError)
    assert issubclass(RequestTimeout, TimeoutError)
    assert issubclass(ConfigError, ValueError)
    assert issubclass(InvalidKeyError, (TypeError, ValueError))


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "ok"),
        (4, "invalid_rpc_arguments"),
        (10, "rpc_throw_exception"),
        (11, "function_not_registered"),
        (12, "protocol_error"),
        (14, "message_too_large"),
        (17, "serial_number_conflict"),
        (18, "unknown"),
        (255, "unknown"),
        (-1, "unknown"),
    ],
)
def test_an_rpc_error_names_its_code_and_keeps_what_it_does_not_know(code: int, name: str) -> None:
    error = RpcError(code, "detail")
    assert (error.code, error.name, error.detail) == (code, name, "detail")
    assert str(error) == f"the master's RPC layer answered error {code} ({name}): detail"
    assert str(RpcError(code)) == f"the master's RPC layer answered error {code} ({name})"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StoreError(-600), "Mooncake answered -600 (INVALID_PARAMS)"),
        (StoreError(-1010), "Mooncake answered -1010 (UNAVAILABLE_IN_CURRENT_STATUS)"),
        (StoreError(7), "Mooncake answered 7 (unknown code)"),
        (StoreError(-1701, key="k"), "Mooncake answered -1701 (TENANT_NOT_REGISTERED) for key 'k'"),
        (StoreError(-1, key=b"\xff", count=3), r"Mooncake answered -1 (INTERNAL_ERROR) for key b'\xff' and 2 more"),
        (StoreError(-1, key=""), "Mooncake answered -1 (INTERNAL_ERROR) for key ''"),
    ],
)
def test_a_store_error_names_its_code_the_key_and_how_many_more(error: StoreError, text: str) -> None:
    assert str(error) == text


def test_a_long_key_is_shown_short_and_with_its_length() -> None:
    for key in ("k" * 1_000_000, b"k" * 1_000_000, "\ud800" * 1_000_000):
        text = str(StoreError(-1, key=key))
        assert "(1000000 long)" in text
        assert len(text) < 200
        text.encode()


def test_a_timeout_says_where_the_question_was() -> None:
    assert RequestTimeout("message").phase == "awaiting reply"
    assert RequestTimeout("message", phase="connecting").phase == "connecting"
