"""For tests of whatever talks to a master: a network that fails on command, and a peer that misbehaves as told."""

from .direction import Direction
from .peer import ScriptedPeer, reset
from .proxy import FaultProxy

__all__ = ["Direction", "FaultProxy", "ScriptedPeer", "reset"]
