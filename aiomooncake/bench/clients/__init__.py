"""Who is measured: the engine, the official client and what people build from it today, and bare sockets."""

from __future__ import annotations

from .base import Ask, Client
from .kinds import KINDS, Kind

__all__ = ["KINDS", "Ask", "Client", "Kind"]
