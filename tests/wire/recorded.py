"""The calls in tests/golden/wire.json: what official clients and real masters of four versions said to each other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "golden" / "wire.json"
# The first recorded master that takes a tenant.
_TAKES_TENANT = "0.3.13.post1"


@dataclass(frozen=True)
class Recording:
    """A recorded frame, whole, or as much of it as was kept."""

    kept: bytes | None
    length: int
    sha256: str

    def is_of(self, frame: bytes) -> bool:
        return len(frame) == self.length and hashlib.sha256(frame).hexdigest() == self.sha256


@dataclass(frozen=True)
class Call:
    master: str
    tenant: str | None
    keys: tuple[str, ...]
    answers: tuple[int, ...]
    seq: int
    request: Recording
    response: Recording

    def __str__(self) -> str:
        return f"{self.master}-{self.tenant}-{len(self.keys)}x{len(self.keys[0])}"


@cache
def calls() -> tuple[Call, ...]:
    recorded = json.loads(_FILE.read_text())["calls"]
    return tuple(
        Call(
            master=call["master"],
            tenant=(call["tenant"] or "default") if call["master"] == _TAKES_TENANT else None,
            keys=_keys(call["keys"]),
            answers=_answers(call["answers"]),
            seq=call["seq"],
            request=_recording(call["request"]),
            response=_recording(call["response"]),
        )
        for call in recorded
    )


def _keys(recorded: Any) -> tuple[str, ...]:
    if isinstance(recorded, list):
        return tuple(recorded)
    if recorded["rule"] == "'x%d'":
        keys = tuple(f"x{i}" for i in range(recorded["n"]))
    else:
        keys = tuple(hashlib.sha256(b"page%d" % i).hexdigest() + "_0_k" for i in range(recorded["n"]))
    assert (keys[0], keys[-1]) == (recorded["first"], recorded["last"])
    return keys


def _answers(recorded: Any) -> tuple[int, ...]:
    return tuple(recorded) if isinstance(recorded, list) else (recorded["all"],) * recorded["n"]


def _recording(recorded: Any) -> Recording:
    if isinstance(recorded, str):
        frame = bytes.fromhex(recorded)
        return Recording(frame, len(frame), hashlib.sha256(frame).hexdigest())
    return Recording(None, recorded["length"], recorded["sha256"])
