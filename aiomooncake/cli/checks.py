"""What `doctor` looks at, one function a check. Each says what it found and, if that is bad, what to do."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import sys
import time
from importlib import metadata
from typing import TYPE_CHECKING, Literal, NamedTuple

import anyio
import anyio.to_thread
import numpy as np

from .. import _version
from ..local.install import suggest_cure
from .console import format_duration

if TYPE_CHECKING:
    from ..engine import Engine
    from ..target import Address

__all__ = [
    "Outcome",
    "check_connection",
    "check_ibverbs",
    "check_library",
    "check_library_loads",
    "check_name",
    "check_packages",
    "check_role",
    "check_round_trip",
    "check_signature",
    "library_is_there",
    "speaks_http",
]

_INSTALL = "pip install 'aiomooncake[non-cuda]' (or [cuda12], [cuda13]: the build that your engine uses)"
_PROJECT = "mooncake-transfer-engine"
_VARIANTS = {
    _PROJECT: "CUDA 12 build",
    f"{_PROJECT}-non-cuda": "build without CUDA",
    f"{_PROJECT}-cuda13": "CUDA 13 build",
}
_LOADING_LIMIT = 30.0
_LOOKUPS = 300
_WARM_UP = 50


class Outcome(NamedTuple):
    """One line of the report."""

    status: Literal["ok", "fail", "skip"]
    name: str
    found: str
    advice: str | None = None


def check_packages() -> Outcome:
    """What this Python runs us with."""
    versions = ", ".join(f"{name} {_installed_version(name)}" for name in ("uvloop", "anyio", "numpy"))
    return Outcome("ok", "aiomooncake", f"{_version.__version__}, Python {platform.python_version()}, {versions}")


def library_is_there() -> bool:
    """Whether anything would be imported as `mooncake`."""
    return importlib.util.find_spec("mooncake") is not None


def check_library() -> Outcome:
    """Whether there is one build of the Mooncake library, and which."""
    name = "library"
    distributions = {dist: metadata.version(dist) for dist in metadata.packages_distributions().get("mooncake", ())}
    if not distributions and library_is_there():
        return Outcome("ok", name, "a package mooncake that no installer knows of, perhaps built from source")
    if not distributions:
        found = "Mooncake's own library is not installed: asking works, store=, LocalCluster and demo do not"
        return Outcome("skip", name, found, _INSTALL)
    builds = " and ".join(f"{dist} {version}" for dist, version in sorted(distributions.items()))
    if len(distributions) > 1:
        remove = f"pip uninstall {' '.join(sorted(distributions))}, then install one of them again"
        return Outcome("fail", name, f"{builds} overwrite each other's files", remove)
    (dist,) = distributions
    if not dist.startswith(_PROJECT):
        return Outcome("fail", name, f"{builds} is another package of the name mooncake", _INSTALL)
    return Outcome("ok", name, f"{builds} ({_VARIANTS.get(dist, 'a build for other hardware')})")


def check_ibverbs(wanted: bool) -> Outcome:
    """Whether libibverbs loads, which Mooncake's library needs even where there is no RDMA hardware."""
    name = "libibverbs"
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError as error:
        if not wanted:
            return Outcome("skip", name, "not installed; only Mooncake's own library needs it")
        return Outcome("fail", name, str(error), suggest_cure(f"libibverbs: {error}"))
    return Outcome("ok", name, "libibverbs.so.1 loads")


async def check_library_loads() -> Outcome:
    """Whether the library can be imported, tried in another process: it is C++ and can end the one it is in."""
    name = "import"
    command = [sys.executable, "-c", "import mooncake.store"]
    environment = {"MC_LOG_LEVEL": "ERROR", **os.environ}
    try:
        with anyio.fail_after(_LOADING_LIMIT):
            done = await anyio.run_process(command, check=False, env=environment)
    except TimeoutError:
        return Outcome("fail", name, f"importing mooncake.store took more than {_LOADING_LIMIT:.0f} s", _INSTALL)
    if done.returncode == 0:
        return Outcome("ok", name, "mooncake.store can be imported")
    complaint = done.stderr.decode(errors="replace")
    last = (complaint.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    advice = suggest_cure(complaint) or f"is it built for this Python? Otherwise: {_INSTALL}"
    return Outcome("fail", name, f"mooncake.store cannot be imported: {last}", advice)


async def check_name(address: Address, timeout: float) -> Outcome:
    """Whether the host has addresses."""
    try:
        with anyio.fail_after(timeout):
            found = await anyio.getaddrinfo(address.host, address.port, type=1)
    except (OSError, UnicodeError) as error:
        reason = "no answer from the resolver" if isinstance(error, TimeoutError) else str(error)
        advice = "check the spelling, or give the master's IP address"
        return Outcome("fail", "name", f"{address.host} does not resolve: {reason}", advice)
    hosts = ", ".join(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    return Outcome("ok", "name", address.host if hosts == address.host else f"{address.host} is {hosts}")


async def check_connection(address: Address, timeout: float, *, alone: bool) -> Outcome:
    """Whether something accepts connections there. A standby master does not, so one may if it is not `alone`."""
    start = time.perf_counter()
    try:
        with anyio.fail_after(timeout):
            await (await anyio.connect_tcp(address.host, address.port)).aclose()
    except TimeoutError:
        advice = "a firewall may drop packets; or the host is down"
        return Outcome("fail", "tcp", f"{address} did not answer within {timeout:g} s", advice)
    except OSError as error:
        cause = error.__cause__ or error
        if not alone and isinstance(cause, ConnectionRefusedError):
            return Outcome("skip", "tcp", f"{address} refuses connections, as a standby does")
        advice = "is mooncake_master running there, and this its --rpc_port? Does it listen on that address?"
        return Outcome("fail", "tcp", f"{address}: {getattr(cause, 'strerror', None) or cause}", advice)
    return Outcome("ok", "tcp", f"{address} accepts connections ({format_duration(time.perf_counter() - start)})")


def check_signature(takes_tenant: bool | None, tenant: str) -> Outcome:
    """Which form of the call the master takes, and whether that fits the tenant that is asked for."""
    if takes_tenant:
        return Outcome(
            "ok", "signature", f"BatchExistKey with a tenant (masters from 0.3.12 on); asking for {tenant!r}"
        )
    found = "BatchExistKey without a tenant (masters up to 0.3.11)"
    if tenant == "default":
        return Outcome("ok", "signature", found)
    advice = "leave the tenant out, or upgrade the master"
    return Outcome("fail", "signature", f"{found}: {tenant!r} is ignored, all keys are shared", advice)


async def check_round_trip(engine: Engine) -> Outcome:
    """How long one question takes, one at a time, about a key that nobody has: a hit would grant a lease."""
    key = f"aiomooncake-doctor-{os.urandom(16).hex()}"
    samples = []
    for _ in range(_LOOKUPS + _WARM_UP):
        start = time.perf_counter()
        await engine.exists(key)
        samples.append(time.perf_counter() - start)
    p50, p99 = map(format_duration, np.percentile(samples[_WARM_UP:], [50, 99]).tolist())
    return Outcome("ok", "round trip", f"p50 {p50}, p99 {p99} ({_LOOKUPS} questions, one at a time)")


async def check_role(host: str, port: int, timeout: float) -> Outcome:
    """Whether the master leads, by its admin HTTP."""
    where = f"the admin HTTP at {host}:{port}"
    try:
        with anyio.fail_after(timeout):
            status, page = await _get(host, port, "/role")
    except (OSError, ValueError):
        advice = "give the master's --metrics_port as --metrics-port PORT"
        return Outcome("skip", "role", f"{where} does not answer", advice)
    role = page.strip()
    if status != 200 or not role.isalpha():  # masters before high availability have no such page
        return Outcome("skip", "role", f"{where} does not tell it")
    if role == "leader":
        return Outcome("ok", "role", f"leader, says {where}")
    return Outcome("fail", "role", f"{role}, says {where}", "ask the leader instead: name all masters in MASTER")


async def speaks_http(address: Address, timeout: float) -> bool:
    """Whether this is a web server, such as the admin HTTP of a master."""
    try:
        with anyio.fail_after(timeout):
            await _get(address.host, address.port, "/health")
    except (OSError, ValueError):
        return False
    return True


async def _get(host: str, port: int, path: str) -> tuple[int, str]:
    """Status and body of a page; ValueError: the peer speaks something else."""
    async with await anyio.connect_tcp(host, port) as stream:
        await stream.send(f"GET {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        try:
            while len(answer) < 65536:
                answer += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/"):
        raise ValueError(f"no HTTP: {head[:32]!r}")
    return int(head.split()[1]), body.decode(errors="replace")


def _installed_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "(unknown version)"
