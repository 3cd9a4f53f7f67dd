"""What does it cost to write a batch and to read its answer?

    python -m benchmarks.codec

For 64-digit keys of one length, of three lengths, and as bytes; beside `"".join(keys).encode()`, which is the least
that writing strings can cost. Once as a process starts, and once after malloc has seen a block of 4 MB come and go:
until then glibc asks the kernel for every block over 128 KB anew (see `RpcTransport.connect`).
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from aiomooncake.wire.messages import BatchExistEncoder, decode_batch_exist

if TYPE_CHECKING:
    from collections.abc import Callable

_ANSWER = bytes.fromhex("5d8c5f2a1484870b0100")  # as a debug build of the master starts it, lengths of 4 bytes


def _fastest(function: Callable[[], object]) -> float:
    """Microseconds of the fastest of many calls: what else the machine does only adds."""
    best = float("inf")
    for _ in range(300):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def _measure() -> None:
    print("  keys |  join | one length  ns a key | three lengths | bytes | decoding")
    encoder = BatchExistEncoder("default")
    for count in (1, 64, 1024, 2048, 4096):
        keys = [f"{number:064x}" for number in range(count)]
        mixed = [key + "_0_k"[: number % 3] for number, key in enumerate(keys)]
        answer = _ANSWER + count.to_bytes(4, "little") + b"\1\1" * count
        times = [
            _fastest(lambda keys=keys: "".join(keys).encode()),  # type: ignore[misc]
            _fastest(partial(encoder.encode, keys)),
            _fastest(partial(encoder.encode, mixed)),
            _fastest(partial(encoder.encode, [key.encode() for key in keys])),
            _fastest(partial(decode_batch_exist, answer, count)),
        ]
        join, one, three, raw, decoding = (1000 * each / count for each in times)
        print(
            f"{count:6} | {join:5.1f} | {one:10.1f} ({times[1]:5.1f} us) | {three:13.1f} | {raw:5.1f} | {decoding:8.2f}"
        )


def main() -> None:
    print("as a process starts")
    _measure()
    print("after a block of 4 MB")
    bytes(4 << 20)
    _measure()


if __name__ == "__main__":
    main()
