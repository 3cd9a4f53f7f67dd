"""Feed the decoder whatever a peer could send, for as long as you like; no part of the test suite.

    .venv/bin/python -m tests.fuzz_decoder --minutes 10

Recorded and well-formed answers are mutated, framed or not, cut anyhow, and read by everything that reads what a
master sends. Every input must yield what a plain reading of the format yields, ask for more, or raise
RemoteProtocolError, and hold no more memory than the cap allows. A failure prints the input, which
`--reproduce HEX` runs again. Where atheris is installed (pip install atheris), coverage guides the mutations.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

from aiomooncake.errors import RemoteProtocolError
from aiomooncake.reply import ERROR, Reply
from aiomooncake.transport.session import Session
from aiomooncake.wire import coro_rpc, messages, struct_pack
from aiomooncake.wire.coro_rpc import FrameDecoder
from aiomooncake.wire.messages import decode_batch_exist, decode_error_message, decode_service_ready

from .wire import naive, recorded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from aiomooncake.wire.coro_rpc import Frame

CAP = 4096
HEADER = 16
# A frame as it gathers, the whole of it, its body, its halves, and small change.
MOST_MEMORY = 6 * (HEADER + CAP) + 64 * 1024


def check(data: bytes) -> None:
    """Read one input: a byte that says how to frame the rest, one how to cut it, one how many keys were asked."""
    if len(data) < 3:
        return
    mode, cut, count, payload = data[0], data[1] + 1, data[2], data[3:]
    stream = naive.frame(1, payload, mode >> 1) if mode & 1 else payload
    frames, refused = decode([stream])
    assert decode(stream[at : at + cut] for at in range(0, len(stream), cut)) == (frames, refused)
    assert stream.startswith(b"".join(naive.frame(frame.seq, frame.body, frame.error) for frame in frames))
    for body in (payload, *(frame.body for frame in frames)):
        check_body(body, count)
    converse(stream)


def decode(pieces: Iterable[bytes]) -> tuple[list[Frame], bool]:
    decoder, frames = FrameDecoder(CAP), list["Frame"]()
    try:
        for piece in pieces:
            for frame in decoder.feed(piece):
                assert len(frame.body) <= CAP
                frames.append(frame)
            assert decoder.buffered < HEADER + CAP
    except RemoteProtocolError:
        return frames, True
    return frames, False


def check_body(body: bytes, count: int) -> None:
    for asked in {count, body[4] if len(body) > 4 else 0, body[10] if len(body) > 10 else 0}:
        answers = naive.read_answer(body, asked)
        try:
            reply = decode_batch_exist(body, asked)
        except RemoteProtocolError:
            assert answers is None
        else:
            assert answers is not None
            bits = bytes(int(answer) if isinstance(answer, bool) else ERROR for answer in answers)
            assert reply == Reply(bits, {i: code for i, code in enumerate(answers) if not isinstance(code, bool)})
    with suppress(RemoteProtocolError):
        decode_error_message(body).encode()
    with suppress(RemoteProtocolError):
        ready = decode_service_ready(body)
        assert ready.version is None or not ready.code


def converse(stream: bytes) -> None:
    session: Session[int] = Session(CAP)
    for token in range(3):
        session.request(0, b"", token)
    answered: list[int] = []
    with suppress(RemoteProtocolError):
        answered += [token for token, _ in session.receive(stream)]
    left = session.abandon()
    assert left == list(range(3 - len(left), 3))
    assert answered in ([], list(range(3 - len(left))))


# ---- inputs -------------------------------------------------------------------------------------------------------


def seeds() -> list[bytes]:
    """Good inputs of every kind."""
    found = []
    for call in recorded.calls():
        raw = call.response.kept
        if raw is not None and len(raw) < 1500:
            count = min(len(call.keys), 255)
            found += [bytes([0, 255, count]) + raw, bytes([1, 255, count]) + raw[HEADER:]]
    for width in naive.WIDTHS:
        for debug in (True, False):
            version = naive.header(naive.VERSION, width, debug=debug) + b"\1" + (5).to_bytes(width, "little") + b"2.0.0"
            bodies = [naive.answer([True, False, -600], width=width, debug=debug), version]
            found += [bytes([1, 6, 3]) + body for body in bodies]
            found.append(bytes([1 | 11 << 1, 6, 0]) + naive.string(b"no such function", width=width, debug=debug))
    found.append(bytes([1, 6, 0]) + naive.header(naive.NO_VERSION, 1, debug=True) + b"\1")
    found.append(bytes([0, 6, 1]) + b"".join(naive.frame(seq, naive.answer([True])) for seq in (1, 2, 3)))
    return found


def mutate(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 2, 3, 6))):
        at = chance.randrange(len(changed) + 1)
        kind = chance.randrange(7)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(changed):
            changed[at] = chance.choice((0, 1, 2, 4, 8, 0x0C, 0x10, 0x14, 0x15, 0x18, 0x1C, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del changed[at : at + chance.choice((1, 1, 2, 4, 16))]
        elif kind == 3:
            changed[at:at] = chance.randbytes(chance.choice((1, 2, 4, 16)))
        elif kind == 4:
            number = chance.choice((0, 1, 255, 256, CAP, CAP + 1, 2**31, 2**32 - 1))
            changed[at : at + 4] = number.to_bytes(4, "little")
        elif kind == 5:
            del changed[at:]
        else:
            other = chance.choice(others)
            changed[at:] = other[chance.randrange(len(other)) :]
    return bytes(changed)


# ---- drivers ------------------------------------------------------------------------------------------------------


def run_mutations(seconds: float, seed: int) -> None:
    chance, corpus = random.Random(seed), seeds()
    start = said = time.monotonic()
    executions = most = 0
    while (now := time.monotonic()) - start < seconds:
        for _ in range(100):
            data = mutate(chance.choice(corpus), chance, corpus)
            executions += 1
            measured = executions % 500 == 0
            if measured:
                tracemalloc.start()
            try:
                check(data)
            except BaseException as error:
                sys.stderr.write(f"{type(error).__name__} after {executions} executions; --reproduce {data.hex()}\n")
                raise
            if measured:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                most = max(most, peak)
                assert peak < MOST_MEMORY + 6 * len(data), f"{peak} bytes; --reproduce {data.hex()}"
        if now - said >= 10:
            said = now
            sys.stdout.write(f"{now - start:.0f} s: {executions} executions\n")
            sys.stdout.flush()
    elapsed = time.monotonic() - start
    sys.stdout.write(
        f"{executions} executions in {elapsed:.0f} s ({executions / elapsed:.0f}/s), seed {seed}:"
        f" nothing but RemoteProtocolError, at most {most} bytes of memory at once\n"
    )


def run_atheris(seconds: float, seed: int) -> None:
    """Let libFuzzer choose the inputs. It reports executions, and ends the process itself."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    for function in functions_of(struct_pack, coro_rpc, messages):
        atheris.instrument_func(function)
    corpus = tempfile.mkdtemp(prefix="aiomooncake-fuzz-")
    for number, data in enumerate(seeds()):
        (Path(corpus) / str(number)).write_bytes(data)
    options = [f"-max_total_time={seconds:.0f}", f"-seed={seed}", "-max_len=6000", "-rss_limit_mb=1024"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={corpus}/", corpus], check)
    atheris.Fuzz()


def functions_of(*modules: ModuleType) -> Iterator[FunctionType]:
    for module in modules:
        for thing in vars(module).values():
            members = vars(thing).values() if isinstance(thing, type) else (thing,)
            for member in members:
                if isinstance(member, FunctionType) and member.__module__ == module.__name__:
                    yield member


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the decoder.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run; as printed at its end")
    parser.add_argument("--reproduce", metavar="HEX", help="run one input again")
    options = parser.parse_args()
    if options.reproduce is not None:
        check(bytes.fromhex(options.reproduce))
        return
    seed = random.randrange(1, 2**31) if options.seed is None else options.seed
    if importlib.util.find_spec("atheris"):
        run_atheris(options.minutes * 60, seed)
    else:
        run_mutations(options.minutes * 60, seed)


if __name__ == "__main__":
    main()
