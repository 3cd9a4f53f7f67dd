"""Counters of one engine, and the frozen snapshot that users get."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters", "EngineStats"]


@dataclass(slots=True)
class Counters:
    """Counted as things happen; see EngineStats for what each means."""

    questions: int = 0
    keys_asked: int = 0
    keys_sent: int = 0
    keys_merged: int = 0
    calls: int = 0
    errors: int = 0
    timeouts: int = 0
    cancelled: int = 0
    refused: int = 0
    degraded: int = 0
    lookups: int = 0
    keys_in_vain: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """What an engine has done since it was made, and how it stands now.

    Attributes:
        questions: calls of `exists`, `batch_exists` and every window of `prefix_length` or `lookup`.
        keys_asked: keys in those questions.
        keys_sent: keys that went to the master; fewer if callers shared keys or stopped waiting.
        keys_merged: keys that were not sent because another caller's same key stood in the same batch.
        calls: BatchExistKey calls that went to the master.
        errors: questions that ended in an error other than a timeout.
        timeouts: questions that ended at their deadline.
        cancelled: questions whose caller stopped waiting.
        refused: questions refused with OverloadedError.
        degraded: questions that failed and were answered "nothing is cached" (errors="miss").
        lookups: finished calls of `lookup` and `lookup_tokens`.
        keys_in_vain: keys that those asked because a prediction was too long.
        pending_keys: keys that wait to be sent, now.
        waiting_outside: questions that wait for a place among those, now.
        calls_in_flight: calls sent and not answered, now.
        connections_open: connections (or worker threads) that are usable, now.
        connections_lost: connections that worked and then ended.
        master: "host:port" of the master that answers; None for a store.
        master_version: the store protocol version that it reports, if it does.
        master_takes_tenant: whether its calls take a tenant (masters from 0.3.12 on); None if unknown.
    """

    questions: int
    keys_asked: int
    keys_sent: int
    keys_merged: int
    calls: int
    errors: int
    timeouts: int
    cancelled: int
    refused: int
    degraded: int
    lookups: int
    keys_in_vain: int
    pending_keys: int
    waiting_outside: int
    calls_in_flight: int
    connections_open: int
    connections_lost: int
    master: str | None
    master_version: str | None
    master_takes_tenant: bool | None
