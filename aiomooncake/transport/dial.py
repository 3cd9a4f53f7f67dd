"""Making a connection to whichever of several masters serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio

from ..errors import AioMooncakeError, ConnectError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..target import Address
    from .connection import Connection

__all__ = ["Dialer"]

# Seconds that one attempt may take, handshake included: a hung master still accepts connections.
_ATTEMPT_LIMIT = 2.0
# Seconds that a master has for itself before the next one in the list is tried as well.
_HEAD_START = 0.25


class Dialer:
    """Connects and shakes hands."""

    def __init__(self, new_connection: Callable[[str], Connection], tenant: str) -> None:
        """Make connections with `new_connection(address)`; they will ask for `tenant`'s keys."""
        self._new_connection = new_connection
        self._tenant = tenant

    async def dial(self, addresses: Sequence[Address]) -> Connection:
        """A connection to the first master that serves. Those behind it in the list start a little later.

        Args:
            addresses: the masters, preferred ones first.

        Raises:
            ConnectError: none serves; says why, for each.
        """
        if not addresses:
            raise ConnectError(
                "no Mooncake master is named as the leader; is one running, and is the cluster's name right?"
            )
        failures: dict[Address, Exception] = {}
        winner: Connection | None = None

        async def attempt(address: Address, turn: anyio.Event, next_turn: anyio.Event) -> None:
            nonlocal winner
            with anyio.move_on_after(_HEAD_START):
                await turn.wait()
            try:
                connection = await self._connect(address)
            except (OSError, AioMooncakeError) as error:
                failures[address] = error
                next_turn.set()
            else:
                if winner is None:
                    winner = connection
                    group.cancel_scope.cancel()
                else:
                    connection.close()

        try:
            async with anyio.create_task_group() as group:
                turn = anyio.Event()
                turn.set()
                for address in addresses:
                    next_turn = anyio.Event()
                    group.start_soon(attempt, address, turn, next_turn, name=f"aiomooncake dial {address}")
                    turn = next_turn
        except BaseException:
            if winner is not None:
                winner.close()
            raise
        if winner is not None:
            if winner.ended_by is not None:  # while the others were called off, and nobody else knew of it yet
                raise ConnectError(f"cannot connect to a Mooncake master: {winner.ended_by}") from winner.ended_by
            return winner
        reasons = "; ".join(_describe(address, failures[address]) for address in addresses)
        raise ConnectError(f"cannot connect to a Mooncake master: {reasons}") from failures[addresses[0]]

    async def _connect(self, address: Address) -> Connection:
        connection = self._new_connection(str(address))
        try:
            with anyio.fail_after(_ATTEMPT_LIMIT):
                await asyncio.get_running_loop().create_connection(lambda: connection, address.host, address.port)
                await connection.handshake(self._tenant)
        except BaseException:
            connection.close()
            raise
        return connection


def _describe(address: Address, error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"{address} said nothing for {_ATTEMPT_LIMIT:g} s (it hangs, or something between drops packets)"
    if isinstance(error, ConnectionRefusedError):
        return f"{address} refused the connection (is mooncake_master running there?)"
    text = str(error) or type(error).__name__
    return text if str(address) in text else f"{address}: {text}"
