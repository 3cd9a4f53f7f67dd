"""Questions and the batches they travel in. Pure bookkeeping: nothing here sends, waits or looks at a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import InvalidKeyError, StoreError, fresh
from .keys import ObjectKeys
from .reply import HIT, NO_ERRORS, Reply
from .wire.messages import check_keys

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from .errors import AioMooncakeError
    from .wire.messages import Key

__all__ = ["Batch", "Question"]


class Question:
    """Several keys that one caller asks at once; its future gets one Reply, in key order."""

    __slots__ = ("_bits", "_errors", "_missing", "future", "keys", "taken")

    def __init__(self, keys: Sequence[Key], future: asyncio.Future[Reply]) -> None:
        self.keys = keys
        self.future = future
        self.taken = 0  # keys that have been put into batches so far
        self._missing = len(keys)
        self._bits: bytearray | None = None
        self._errors: dict[int, int] = {}

    @property
    def left(self) -> int:
        """Keys that are not in a batch yet."""
        return len(self.keys) - self.taken

    def receive(self, start: int, reply: Reply) -> None:
        """Take the answers for the keys from `start` on."""
        if self.future.done():
            return
        bits, errors = reply
        count = len(bits)
        if count == len(self.keys):
            self.future.set_result(reply)
            return
        if self._bits is None:
            self._bits = bytearray(len(self.keys))
        self._bits[start : start + count] = bits
        for position, code in errors.items():
            self._errors[start + position] = code
        self._missing -= count
        if not self._missing:
            self.future.set_result(Reply(bytes(self._bits), self._errors))

    def fail(self, error: AioMooncakeError) -> None:
        """End the question; the rest of it will not be asked."""
        if not self.future.done():
            self.future.set_exception(fresh(error))


class Batch:
    """Keys of one or more callers that are asked in one call.

    Filled while it waits for a slot, then `seal`ed: from there on `keys` is what goes on the wire, first the lone
    keys, then the parts of questions; with `dedup`, each key once.
    """

    __slots__ = ("_futures", "_lone_keys", "_parts", "_places", "attempts", "keys", "on_done", "size")

    def __init__(self) -> None:
        self.size = 0
        self.attempts = 0  # how often it was sent
        self.on_done: Callable[[Batch, AioMooncakeError | None], None]
        self.keys: Sequence[Key] = ()
        self._lone_keys: list[Key] = []
        self._futures: list[asyncio.Future[bool]] = []
        self._parts: list[tuple[Question, int, int]] = []
        self._places: list[int] | None = None  # where in `keys` each asked key went, if duplicates were dropped

    def add_lone(self, key: Key, future: asyncio.Future[bool]) -> None:
        """Put in the one key of a caller whose future gets a bool."""
        self._lone_keys.append(key)
        self._futures.append(future)
        self.size += 1

    def add_part(self, question: Question, count: int) -> None:
        """Put in the next `count` keys of a question."""
        self._parts.append((question, question.taken, count))
        question.taken += count
        self.size += count

    @property
    def waiters(self) -> int:
        """Callers that have keys in this batch."""
        return len(self._futures) + len(self._parts)

    def futures(self) -> list[asyncio.Future[bool] | asyncio.Future[Reply]]:
        """The futures of those callers."""
        return [*self._futures, *(question.future for question, _, _ in self._parts)]

    def ended_keys(self) -> int:
        """How many keys of questions, lone keys aside, nobody waits for any longer."""
        return sum(count for question, _, count in self._parts if question.future.done())

    def drop_done(self) -> None:
        """Take out callers that no longer wait (cancelled, or past their deadline)."""
        if any(future.done() for future in self._futures):
            alive = [pair for pair in zip(self._lone_keys, self._futures, strict=True) if not pair[1].done()]
            self._lone_keys = [key for key, _ in alive]
            self._futures = [future for _, future in alive]
        self._parts = [part for part in self._parts if not part[0].future.done()]
        self.size = len(self._futures) + sum(count for _, _, count in self._parts)

    def seal(self, *, dedup: bool, on_done: Callable[[Batch, AioMooncakeError | None], None]) -> None:
        """Fix what is asked. `on_done` is called when every caller has its answer, or with the error of the call."""
        self.on_done = on_done
        self._places = None  # a batch is sealed again when callers were dropped
        keys: Sequence[Key] = self._lone_keys
        if len(self._parts) == 1 and not keys:
            question, start, count = self._parts[0]
            keys = question.keys if count == len(question.keys) else question.keys[start : start + count]
        elif self._parts:
            keys = self._merged()
        if dedup and self.waiters > 1:
            keys = self._without_duplicates(keys)
        self.keys = keys

    def _merged(self) -> Sequence[Key]:
        parts = [
            question.keys if count == len(question.keys) else question.keys[start : start + count]
            for question, start, count in self._parts
        ]
        if not self._lone_keys and (unspelled := ObjectKeys.joined(parts)) is not None:
            return unspelled
        merged = list(self._lone_keys)
        for part in parts:
            merged += part
        return merged

    def _without_duplicates(self, keys: Sequence[Key]) -> Sequence[Key]:
        if isinstance(keys, ObjectKeys):
            if not keys.repeat():
                return keys
            keys = list(keys)
        try:
            if len(set(keys)) == len(keys):
                return keys
        except Exception:  # a "key" that has no hash or breaks when compared: encoding will name it
            return keys
        if not {str, bytes}.issuperset(map(type, keys)):
            return keys  # a subclass may call keys equal that are not, and one caller must not get another's answer
        places: dict[Key, int] = {}
        self._places = [places.setdefault(key, len(places)) for key in keys]
        return list(places)

    def drop_invalid(self) -> bool:
        """Fail and take out the callers whose keys have no form on the wire; whether there is anybody less now."""
        size = self.size
        self.drop_done()  # a future may have been cancelled in this very turn
        for key, future in zip(self._lone_keys, self._futures, strict=True):
            if (error := _fault((key,))) is not None:
                future.set_exception(error)
        for question, _, _ in self._parts:
            if (error := _fault(question.keys)) is not None:
                question.fail(error)
        self.drop_done()
        return self.size < size

    def halves(self) -> tuple[Batch, Batch] | None:
        """The same in two batches, not sealed; None if there is but one key."""
        lone = list(zip(self._lone_keys, self._futures, strict=True))
        parts = self._parts
        if len(parts) == 1 and not lone:
            question, start, count = parts[0]
            if count == 1:
                return None
            half = count // 2
            return Batch._of([], [(question, start, half)]), Batch._of([], [(question, start + half, count - half)])
        if len(lone) == 1 and not parts:
            return None
        if not parts:
            half = len(lone) // 2
            return Batch._of(lone[:half], []), Batch._of(lone[half:], [])
        if lone:
            return Batch._of(lone, []), Batch._of([], parts)
        half = len(parts) // 2
        return Batch._of([], parts[:half]), Batch._of([], parts[half:])

    @classmethod
    def _of(cls, lone: list[tuple[Key, asyncio.Future[bool]]], parts: list[tuple[Question, int, int]]) -> Batch:
        batch = cls()
        batch._lone_keys = [key for key, _ in lone]
        batch._futures = [future for _, future in lone]
        batch._parts = parts
        batch.size = len(lone) + sum(count for _, _, count in parts)
        return batch

    def answered(self, reply: Reply) -> None:
        """Give every caller its answers (see `Call`)."""
        bits, errors = reply
        places = self._places
        if places is not None:
            bits = bytes([reply.bits[place] for place in places])
            if errors:
                errors = {at: errors[place] for at, place in enumerate(places) if place in errors}
        if errors:
            self._fail_lone(errors)
        for future, bit in zip(self._futures, bits, strict=False):
            if not future.done():
                future.set_result(bit == HIT)
        start = len(self._futures)
        for question, offset, count in self._parts:
            end = start + count
            concerned = {at - start: code for at, code in errors.items() if start <= at < end} if errors else NO_ERRORS
            question.receive(offset, Reply(bits[start:end], concerned))
            start = end
        self.on_done(self, None)

    def _fail_lone(self, errors: Mapping[int, int]) -> None:
        for at, code in errors.items():
            if at < len(self._futures) and not self._futures[at].done():
                self._futures[at].set_exception(StoreError(code, key=self._lone_keys[at]))

    def failed(self, error: AioMooncakeError) -> None:
        """Pass on that there will be no answers (see `Call`); the callers are not told yet."""
        self.on_done(self, error)

    def fail_waiters(self, error: AioMooncakeError) -> None:
        """Give every caller that still waits an error of its own."""
        for future in self._futures:
            if not future.done():
                future.set_exception(fresh(error))
        for question, _, _ in self._parts:
            question.fail(error)


def _fault(keys: Sequence[Key]) -> InvalidKeyError | None:
    try:
        check_keys(keys)
    except InvalidKeyError as error:
        return error
    except Exception as error:  # a stranger that cannot even be shown
        failure = InvalidKeyError(f"a key raised {type(error).__name__} when looked at; keys are str or bytes")
        failure.__cause__ = error
        return failure
    return None
