"""Stores and removes objects all the time, and keeps the model up to date about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from aiomooncake.errors import ConnectError, ConnectionLostError, StoreError

from .model import State

if TYPE_CHECKING:
    from random import Random

    from aiomooncake.local import LocalCluster

    from .model import Model, Places, Prompt

__all__ = ["Writer"]

# Seconds between two changes, once half of what can be stored is.
_PAUSE = 0.05


class Writer:
    """One change at a time: a shelf or prompt that is not stored is, up to some random length; one that is, removed.

    Attributes:
        changes: How many changes were made.
        failed: How many failed, because the master went away meanwhile.
    """

    def __init__(self, cluster: LocalCluster, model: Model, rng: Random) -> None:
        self.changes = 0
        self.failed = 0
        self._cluster = cluster
        self._model = model
        self._rng = rng
        self._units: list[Places | Prompt] = [*model.universe.shelves, *model.universe.prompts]
        self._stored: dict[int, Places] = {}
        self._may_write = asyncio.Event()
        self._may_write.set()

    def pause(self) -> None:
        """Begin no change until `resume`: the master is about to go. One that is under way fails by that."""
        self._may_write.clear()

    def resume(self) -> None:
        """There is a new master, and it is empty."""
        self._stored.clear()
        self._may_write.set()

    async def run(self) -> None:
        """Change things until cancelled."""
        while True:
            await self._may_write.wait()
            number = self._rng.randrange(len(self._units))
            stored = self._stored.get(number)
            if stored is None:
                await self._change(number, self._pick(self._units[number]), State.PRESENT)
            elif len(self._stored) * 2 > len(self._units):
                await self._change(number, stored, State.ABSENT)
                await asyncio.sleep(_PAUSE)

    async def _change(self, number: int, places: Places, state: State) -> None:
        keys = [self._model.universe.keys[place] for place in places]
        epoch = self._model.changing(places)
        self.changes += 1
        try:
            await (self._cluster.put(keys) if state is State.PRESENT else self._cluster.remove(keys))
        except (ConnectError, ConnectionLostError, StoreError):
            self.failed += 1
            if epoch == self._model.epoch:  # who knows how far it came: to be removed
                self._stored[number] = places
            return
        if not self._model.changed(places, state, epoch):
            return
        if state is State.PRESENT:
            self._stored[number] = places
        else:
            del self._stored[number]

    def _pick(self, unit: Places | Prompt) -> Places:
        """Mostly a long run from the start; of prompts each pool its own, so that the pools disagree."""
        if isinstance(unit, np.ndarray):
            return unit[: self._length(len(unit))]
        parts = []
        for objects in unit.objects.values():
            part = objects[: self._length(len(objects))].reshape(-1)
            if self._rng.random() < 0.3:  # a hole
                part = np.delete(part, self._rng.randrange(len(part)))
            parts.append(part)
        return np.concatenate(parts)

    def _length(self, most: int) -> int:
        return most if self._rng.random() < 0.5 else self._rng.randint(1, most)
