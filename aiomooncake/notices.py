"""What an engine tells its operators through the log, once and not once per call. Logger: "aiomooncake"."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .errors import AioMooncakeError
    from .layout import Layout

__all__ = ["HitWatch", "OutageNotice", "log"]

log = logging.getLogger("aiomooncake")

# Seconds after the notice of an outage in which the next one is not told.
_QUIET = 10.0
# Lookups in a row without a single page found, before a layout is suspected; layouts watched at once.
_SUSPICIOUS = 100
_MAX_LAYOUTS = 256


class OutageNotice:
    """With errors="miss": says when lookups begin to be answered as misses, and when they are answered again.

    Some deadlines may be missed now and then while others are met: what begins soon after the last notice is counted
    and not told again.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._is_told = False
        self._degraded = 0
        self._quiet_until = 0.0

    def degraded(self, error: AioMooncakeError) -> None:
        """A question was answered as if nothing were cached."""
        self._degraded += 1
        if not self.is_on:
            self.is_on = True
            now = time.monotonic()
            if now >= self._quiet_until:
                self._is_told = True
                self._quiet_until = now + _QUIET
                log.warning("lookups are answered as if nothing were cached: %s", error)

    def answered(self) -> None:
        """A question was answered while the outage was on: it is over."""
        self.is_on = False
        if self._is_told:
            self._is_told = False
            log.warning("lookups are answered again; %d were not", self._degraded)
            self._degraded = 0


class HitWatch:
    """Suspects a layout that has found nothing in many lookups: its keys are probably not those that are stored."""

    def __init__(self) -> None:
        self._misses: dict[Layout, int] = {}

    def note(self, layout: Layout, *, hit: bool) -> None:
        """One lookup of this layout found something, or nothing."""
        misses = self._misses
        if hit:
            misses[layout] = -1  # beyond suspicion
        elif (count := misses.get(layout, 0)) >= 0:
            if len(misses) >= _MAX_LAYOUTS:
                misses.clear()
            misses[layout] = count + 1
            if count + 1 == _SUSPICIOUS:
                log.warning(
                    "%d lookups found no page with the layout %s; if the cache is not empty, its model name, tag, ranks"
                    " or page size are others. `aiomooncake explain` shows the keys that are asked",
                    _SUSPICIOUS,
                    layout,
                )
