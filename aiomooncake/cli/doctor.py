"""`aiomooncake doctor`: can this machine ask that master?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from rich.table import Table
from rich.text import Text

from ..connector import connect
from ..errors import AioMooncakeError
from ..target import parse_target
from . import checks
from .checks import Outcome
from .console import printable, stdout
from .runner import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import Console

    from ..engine import Engine
    from ..target import Address, Target

__all__ = ["examine", "run_doctor"]

_STYLES = {"ok": "green", "fail": "bold red", "skip": "yellow"}
_NAME_WIDTH = len("aiomooncake")


def run_doctor(master: str, *, metrics_port: int, timeout: float) -> NoReturn:
    """Check, print each line as it is known, and end with the exit status."""
    run(_report(master, metrics_port, timeout))


async def _report(master: str, metrics_port: int, timeout: float) -> int:
    target = parse_target(master)
    console = stdout()
    healthy = True
    async for outcome in examine(master, target, metrics_port=metrics_port, timeout=timeout):
        _print(console, outcome)
        healthy = healthy and outcome.status != "fail"
    return 0 if healthy else 1


async def examine(master: str, target: Target, *, metrics_port: int, timeout: float) -> AsyncIterator[Outcome]:
    """All checks in order, each yielded as soon as it is done; what a failed check makes pointless is left out."""
    yield checks.check_packages()
    yield checks.check_library()
    wanted = checks.library_is_there()
    yield checks.check_ibverbs(wanted=wanted)
    if wanted:
        yield await checks.check_library_loads()
    reachable: list[Address] = []
    for address in target.addresses:
        outcome = await checks.check_name(address, timeout)
        yield outcome
        if outcome.status == "ok":
            outcome = await checks.check_connection(address, timeout, alone=len(target.addresses) == 1)
            yield outcome
            if outcome.status == "ok":
                reachable.append(address)
    if not reachable:
        yield Outcome("fail", "rpc", "no master could be reached", "start one, or name the one that leads in MASTER")
        return
    try:
        async with connect(master, timeout=timeout, connections=1) as engine:
            async for outcome in _examine_master(engine, target.tenant, metrics_port, timeout):
                yield outcome
    except AioMooncakeError as error:
        yield Outcome("fail", "rpc", str(error), await _advise(reachable, timeout))


async def _examine_master(engine: Engine, tenant: str, metrics_port: int, timeout: float) -> AsyncIterator[Outcome]:
    stats = engine.stats()
    assert stats.master is not None
    version = f"store protocol {stats.master_version}" if stats.master_version else "no protocol version (before 0.3.9)"
    yield Outcome("ok", "rpc", f"{stats.master} serves; {version}")
    yield checks.check_signature(stats.master_takes_tenant, tenant)
    yield await checks.check_round_trip(engine)
    host = parse_target(stats.master).addresses[0].host
    yield await checks.check_role(host, metrics_port, timeout)


async def _advise(reachable: list[Address], timeout: float) -> str:
    for address in reachable:
        if await checks.speaks_http(address, timeout):
            return (
                f"{address} speaks HTTP: it is no RPC port, but perhaps a master's --metrics_port; give its --rpc_port"
            )
    return "is that a mooncake_master, of 0.3.7 or newer? One that accepts connections and says nothing may be stopped"


def _print(console: Console, outcome: Outcome) -> None:
    status, name, found, advice = outcome
    if not console.is_terminal:
        console.print(f"{status:4}  {name:{_NAME_WIDTH}}  {printable(found)}", soft_wrap=True)
        if advice is not None:
            console.print(f"{'':{_NAME_WIDTH + 8}}-> {printable(advice)}", soft_wrap=True)
        return
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=4)
    line.add_column(width=_NAME_WIDTH)
    line.add_column(overflow="fold")
    line.add_row(Text(status, _STYLES[status]), Text(name), Text(printable(found)))
    if advice is not None:
        line.add_row("", "", Text.assemble(("-> ", "bold"), printable(advice)))
    console.print(line)
