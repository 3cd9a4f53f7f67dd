from __future__ import annotations

import asyncio
import socket
from importlib import metadata, util
from typing import TYPE_CHECKING

import pytest

from aiomooncake.cli import checks
from aiomooncake.local import LocalCluster

from .commands import on_terminal, run, without_styles

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess

    from ..conftest import SharedCluster

LOCAL_CHECKS = ["aiomooncake", "library", "libibverbs", "import"]


def statuses(done: CompletedProcess[bytes]) -> dict[str, str]:
    """What each check said, by its name; a second line of a check is left out."""
    lines = [line for line in done.stdout.decode().splitlines() if not line.startswith(" ")]
    return {line[6:17].strip(): line[:4].strip() for line in lines}


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_master_that_serves_passes_every_check_and_its_admin_port_none_of_the_last() -> None:
    async def ask_doctor() -> list[CompletedProcess[bytes]]:
        async with LocalCluster(store=False) as cluster:
            admin = cluster.metrics_address
            port = admin.rpartition(":")[2]
            return [
                await asyncio.to_thread(run, "doctor", cluster.address, "--metrics-port", port),
                await asyncio.to_thread(run, "doctor", admin, "--timeout", "0.5"),
            ]

    healthy, wrong_port = asyncio.run(ask_doctor())
    names = [*LOCAL_CHECKS, "name", "tcp", "rpc", "signature", "round trip", "role"]
    assert statuses(healthy) == dict.fromkeys(names, "ok")
    assert (healthy.returncode, healthy.stderr) == (0, b"")
    assert b"\x1b" not in healthy.stdout
    assert wrong_port.returncode == 1
    assert statuses(wrong_port)["rpc"] == "fail"
    assert b"speaks HTTP" in wrong_port.stdout


def test_a_role_that_cannot_be_asked_is_skipped(cluster: SharedCluster) -> None:
    done = run("doctor", cluster.address, "--metrics-port", closed_port().rpartition(":")[2])
    assert done.returncode == 0
    assert statuses(done)["role"] == "skip"
    assert b"--metrics-port PORT" in done.stdout


def test_nobody_listening_fails_with_advice() -> None:
    done = run("doctor", closed_port())
    assert (done.returncode, done.stderr) == (1, b"")
    assert statuses(done)["tcp"] == statuses(done)["rpc"] == "fail"
    assert b"-> is mooncake_master running there" in done.stdout


def test_a_peer_that_says_nothing_fails_with_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = run("doctor", f"127.0.0.1:{server.getsockname()[1]}", "--timeout", "0.2")
    assert done.returncode == 1
    assert (statuses(done)["tcp"], statuses(done)["rpc"]) == ("ok", "fail")
    assert b"may be stopped" in done.stdout


def test_a_name_that_does_not_resolve_fails() -> None:
    done = run("doctor", "no-such-host.invalid:50051")
    assert done.returncode == 1
    assert statuses(done)["name"] == "fail"


def test_one_of_several_masters_may_refuse_connections(cluster: SharedCluster) -> None:
    done = run("doctor", f"mooncake://{closed_port()},{cluster.address}")
    assert done.returncode == 0
    assert b"as a standby does" in done.stdout
    assert statuses(done)["rpc"] == "ok"


def test_a_target_that_cannot_be_read_is_a_usage_error() -> None:
    done = run("doctor", "nonsense")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"aiomooncake: error: target 'nonsense'")


def test_without_the_library_asking_still_works(cluster: SharedCluster, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, importlib.metadata\n"
        "sys.modules['mooncake'] = None\n"
        "importlib.metadata.packages_distributions = dict\n"
    )
    done = run("doctor", cluster.address, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0
    assert statuses(done)["library"] == "skip"
    assert "import" not in statuses(done)
    assert statuses(done)["rpc"] == "ok"


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_terminal_gets_lines_that_fit(columns: int) -> None:
    status, text = on_terminal("doctor", closed_port(), columns=columns)
    assert status == 1
    lines = without_styles(text).splitlines()
    assert max(map(len, lines)) <= columns
    assert [line[:17] for line in lines if line.startswith("fail")] == ["fail  tcp        ", "fail  rpc        "]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The distributions that bring `mooncake`, for the test to fill."""
    names: list[str] = []
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"mooncake": names})
    monkeypatch.setattr(metadata, "version", lambda name: "0.3.13")
    return names


@pytest.mark.parametrize(
    ("distribution", "build"),
    [
        ("mooncake-transfer-engine", "CUDA 12"),
        ("mooncake-transfer-engine-cuda13", "CUDA 13"),
        ("mooncake-transfer-engine-non-cuda", "without CUDA"),
        ("mooncake-transfer-engine-npu", "other hardware"),
    ],
)
def test_the_build_of_the_library_is_named(installed: list[str], distribution: str, build: str) -> None:
    installed.append(distribution)
    outcome = checks.check_library()
    assert outcome.status == "ok"
    assert build in outcome.found


def test_two_builds_of_the_library_clash(installed: list[str]) -> None:
    installed += ["mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine"]
    outcome = checks.check_library()
    assert outcome.status == "fail"
    assert outcome.advice is not None
    assert outcome.advice.startswith("pip uninstall mooncake-transfer-engine mooncake-transfer-engine-non-cuda")


def test_another_package_of_that_name_fails(installed: list[str]) -> None:
    installed.append("mooncake")
    assert checks.check_library().status == "fail"


def test_a_library_without_a_distribution_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "packages_distributions", dict)
    monkeypatch.setattr(util, "find_spec", lambda name: object())
    assert checks.check_library().status == "ok"


def test_a_missing_libibverbs_matters_only_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", refuse)
    assert checks.check_ibverbs(wanted=False).status == "skip"
    outcome = checks.check_ibverbs(wanted=True)
    assert outcome.status == "fail"
    assert outcome.advice is not None
    assert "apt-get install libibverbs1" in outcome.advice


@pytest.mark.parametrize(
    ("takes_tenant", "tenant", "status"),
    [(True, "default", "ok"), (True, "team-a", "ok"), (False, "default", "ok"), (False, "team-a", "fail")],
)
def test_a_tenant_that_the_master_would_ignore_fails(takes_tenant: bool, tenant: str, status: str) -> None:
    assert checks.check_signature(takes_tenant, tenant).status == status
