"""The data-holding client's own process. A script; nobody imports it.

    python -I _data_client_main.py SYS_PATH_AS_JSON

stdin is a socket. Each request is one line of JSON with an `id` and an `op`, followed by as many bytes as its
`value_bytes` says; each gets one line with that `id`, in order. Keys travel as Latin-1 text, byte for byte. A reply
has `code` (0, or Mooncake's first error, where the work ended) and `done` (the keys before that); or `error`, why
`mooncake` could not be imported.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

# The quickest a key of 32 to 20,000, with 0.3.9 and 0.3.13.
BATCH_KEYS = 256
OBJECT_NOT_FOUND = -704


def main() -> None:
    """Answer requests until the other end closes."""
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[:] = json.loads(sys.argv[1])
    client = None
    error = None
    try:
        from mooncake.store import MooncakeDistributedStore

        client = _DataClient(MooncakeDistributedStore())
    except ImportError as reason:
        error = str(reason)
    stream = channel.makefile("rb")
    for line in stream:
        request = json.loads(line)
        request["value"] = stream.read(request["value_bytes"])
        reply = {"error": error} if client is None else getattr(client, request["op"])(request)
        channel.sendall(json.dumps({"id": request["id"], **reply}).encode() + b"\n")
    os._exit(0)  # the store's destructors take seconds, and nobody is left to care


class _DataClient:
    def __init__(self, store: Any) -> None:
        self._store = store
        self._buffer_bytes = 0
        # 0.3.7 cannot remove by force, and batch_remove came with 0.3.11.
        self._force = (True,) if "force" in (store.remove.__doc__ or "") else ()

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        # A put passes through the buffer, so the buffer bounds values; untouched, it takes no memory.
        self._buffer_bytes = segment_bytes = request["segment_bytes"]
        code = self._store.setup(
            "127.0.0.1", "P2PHANDSHAKE", segment_bytes, self._buffer_bytes, "tcp", "", request["address"]
        )
        return {"code": code}

    def put(self, request: dict[str, Any]) -> dict[str, Any]:
        keys = _decode_keys(request)
        value = request["value"]
        # The buffer is an allocator with some waste: half of it is safe to fill.
        size = max(1, min(BATCH_KEYS, self._buffer_bytes // (2 * len(value) + 1)))
        for start in range(0, len(keys), size):
            batch = keys[start : start + size]
            code = self._store.put_batch(batch, [value] * len(batch))
            if code:
                return {"code": code, "done": start}
        return {"code": 0, "done": len(keys)}

    def remove(self, request: dict[str, Any]) -> dict[str, Any]:
        keys = _decode_keys(request)
        size = BATCH_KEYS if hasattr(self._store, "batch_remove") else 1
        for start in range(0, len(keys), size):
            batch = keys[start : start + size]
            codes = [self._store.remove(batch[0], *self._force)] if size == 1 else self._store.batch_remove(batch, True)
            for position, code in enumerate(codes, start):
                if code not in (0, OBJECT_NOT_FOUND):
                    return {"code": code, "done": position}
        return {"code": 0, "done": len(keys)}


def _decode_keys(request: dict[str, Any]) -> list[bytes]:
    return [key.encode("latin-1") for key in request["keys"]]


if __name__ == "__main__":
    main()
