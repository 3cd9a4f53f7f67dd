"""LocalCluster against the real master, and against binaries that are none."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import pytest

from aiomooncake.errors import ClosedError, ConfigError, ConnectError, ConnectionLostError, InvalidKeyError, StoreError
from aiomooncake.local import LocalCluster
from aiomooncake.local.install import suggest_cure
from aiomooncake.local.ports import ReservedPort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.anyio

MARK = "AIOMOONCAKE_TEST_MARK"


# For what the loop makes no difference to; everything else runs on both.
one_loop = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class Leftovers:
    """What this test's clusters have in the system: processes by a mark in their environment, and temporary files."""

    def __init__(self, mark: str, folder: Path) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self._folder = folder

    def processes(self, running: str = "") -> set[int]:
        """Their ids; only of those with `running` in their command line."""
        found = set()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                marked = entry.name.isdigit() and self._mark in (entry / "environ").read_bytes().split(b"\0")
                if marked and running.encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
        return found

    def files(self) -> list[Path]:
        return list(self._folder.iterdir())

    def assert_none(self) -> None:
        assert self.processes() == set()
        assert self.files() == []
        assert zombies() == []


def process_stat(pid: str) -> list[str]:
    """State and parent of a process, then more; see proc(5)."""
    return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()


def zombies() -> list[str]:
    """Children of this process that have ended and were not waited for."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and process_stat(entry.name)[:2] == ["Z", str(os.getpid())]:
                found.append(entry.name)
    return found


@pytest.fixture
def leftovers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Leftovers:
    mark = uuid.uuid4().hex
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return Leftovers(mark, folder)


@pytest.fixture
def fake_master(tmp_path: Path) -> Callable[[str], Path]:
    def make(script: str) -> Path:
        path = tmp_path / "mooncake_master"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return make


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.005)


async def present(cluster: LocalCluster, *keys: str) -> list[bool]:
    """Ask the admin HTTP, which grants no lease."""

    def ask() -> list[bool]:
        connection = http.client.HTTPConnection(cluster.metrics_address, timeout=5)
        try:
            connection.request("GET", f"/batch_query_keys?keys={quote(','.join(keys))}")
            data = json.loads(connection.getresponse().read())["data"]
        finally:
            connection.close()
        return [data[key]["ok"] for key in keys]

    return await anyio.to_thread.run_sync(ask)


async def test_what_was_put_is_present_until_it_is_removed(leftovers: Leftovers) -> None:
    async with LocalCluster() as cluster:
        await cluster.put("a")
        await cluster.put((key for key in ("b", "ключ")), b"value")
        assert await present(cluster, "a", "b", "ключ", "absent") == [True, True, True, False]
        await cluster.remove(["a", "absent", b"b"])
        assert await present(cluster, "a", "b", "ключ") == [False, False, True]
    leftovers.assert_none()


@one_loop
async def test_many_keys_are_put_and_removed_at_once() -> None:
    keys = [f"{number:064x}" for number in range(20_000)]
    async with LocalCluster(rpc_threads=1) as cluster:
        await cluster.put(keys)
        assert (await cluster.metrics())["master_key_count"] == len(keys)
        await cluster.remove(keys)
        assert (await cluster.metrics())["master_key_count"] == 0


@one_loop
async def test_values_as_large_as_the_segment_allows_are_stored_in_turns() -> None:
    async with LocalCluster(segment_bytes=32 << 20) as cluster:
        await cluster.put(["a", "b", "c", "d", "e"], b"\xff\0" * (2 << 20))
        assert await present(cluster, "a", "b", "c", "d", "e") == [True] * 5


@one_loop
async def test_a_value_that_cannot_be_stored_raises_with_the_code_and_the_key() -> None:
    async with LocalCluster(segment_bytes=16 << 20) as cluster:
        with pytest.raises(StoreError) as caught:
            await cluster.put(["large"], bytes(17 << 20))
        assert caught.value.code == -600
        assert caught.value.key == "large"
        await cluster.put("small")
        assert await present(cluster, "large", "small") == [False, True]


@one_loop
async def test_calls_at_the_same_time_get_their_own_answers() -> None:
    async with LocalCluster(segment_bytes=16 << 20) as cluster:
        puts = [cluster.put(f"{number}", b"x" * (17 << 20) if number % 2 else b"x") for number in range(6)]
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert [getattr(result, "key", None) for result in results] == [None, "1", None, "3", None, "5"]
        assert await present(cluster, "0", "1", "2") == [True, False, True]


@one_loop
async def test_a_client_that_died_is_reported_and_replaced_with_the_master(leftovers: Leftovers) -> None:
    async with LocalCluster() as cluster:
        for pid in leftovers.processes("_data_client_main.py"):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(ConnectionLostError):
            await cluster.put("a")
        with pytest.raises(ConnectionLostError):
            await cluster.put("a")
        await cluster.restart_master()
        await cluster.put("a")
        assert await present(cluster, "a") == [True]


@one_loop
async def test_a_bad_key_stores_nothing() -> None:
    async with LocalCluster() as cluster:
        for bad in (7, "\ud800"):
            with pytest.raises(InvalidKeyError):
                await cluster.put(["good", bad])  # type: ignore[list-item]
        assert await present(cluster, "good") == [False]


@one_loop
async def test_a_cancelled_put_is_carried_out_and_mixes_up_no_answers() -> None:
    async with LocalCluster(segment_bytes=16 << 20) as cluster:
        cluster.stop_master()
        with anyio.move_on_after(0.05) as scope:
            await cluster.put("cancelled")
        assert scope.cancelled_caught
        cluster.continue_master()
        with pytest.raises(StoreError):
            await cluster.put("too large", bytes(17 << 20))
        await cluster.put("after")
        assert await present(cluster, "cancelled", "too large", "after") == [True, False, True]


async def test_a_restarted_master_keeps_its_address_and_knows_no_key_until_it_is_put(leftovers: Leftovers) -> None:
    async with LocalCluster() as cluster:
        await cluster.put("a")
        before = cluster.address, cluster.metrics_address, cluster.master_pid
        await cluster.restart_master()
        assert (cluster.address, cluster.metrics_address) == before[:2]
        assert cluster.master_pid != before[2]
        assert await present(cluster, "a") == [False]
        await cluster.put("a")
        assert await present(cluster, "a") == [True]
    leftovers.assert_none()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
async def test_a_master_that_ended_refuses_connections_and_can_be_restarted(stopped: bool) -> None:
    async with LocalCluster() as cluster:
        host, port = cluster.address.split(":")
        for end in (cluster.kill_master, cluster.terminate_master):
            if stopped:
                cluster.stop_master()
            pid = cluster.master_pid
            await end()
            await end()
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            assert "no master" in repr(cluster)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)))
            with pytest.raises(ConnectError, match="restart_master"):
                cluster.stop_master()
            with pytest.raises(ConnectError, match="restart_master"):
                _ = cluster.master_pid
            with pytest.raises(ConnectError, match=cluster.metrics_address):
                await cluster.metrics()
            await cluster.restart_master()
            await cluster.put("a")


@one_loop
async def test_a_stopped_master_is_silent_until_it_is_continued() -> None:
    async with LocalCluster(store=False) as cluster:
        cluster.stop_master()
        await until(lambda: process_stat(str(cluster.master_pid))[0] == "T")
        assert "stopped" in repr(cluster)
        with anyio.move_on_after(0.1) as scope:
            await cluster.metrics()
        assert scope.cancelled_caught
        cluster.continue_master()
        assert "running" in repr(cluster)
        assert await cluster.metrics()


@one_loop
async def test_metrics_are_the_masters_own_counters() -> None:
    async with LocalCluster(store=False) as cluster:
        assert (await cluster.metrics())["master_batch_exist_key_requests_total"] == 0
        assert (await cluster.metrics())["master_active_clients"] == 0
        assert cluster.metrics_url == f"http://{cluster.metrics_address}"


@one_loop
async def test_two_clusters_share_nothing() -> None:
    async with LocalCluster() as one, LocalCluster() as other:
        assert one.address != other.address
        await one.put("a")
        await other.put("b")
        assert await present(one, "a", "b") == [True, False]
        assert await present(other, "a", "b") == [False, True]


@one_loop
async def test_the_lease_is_as_long_as_asked() -> None:
    async with LocalCluster(store=False, lease_ttl=1.25) as cluster:
        assert "default_kv_lease_ttl=1250," in cluster.log()


@one_loop
async def test_a_cluster_without_store_says_that_it_holds_nothing() -> None:
    async with LocalCluster(store=False) as cluster:
        assert "no store" in repr(cluster)
        with pytest.raises(ConfigError, match="store=False"):
            await cluster.put("a")


async def test_nothing_is_left_after_an_exception_in_the_body(leftovers: Leftovers) -> None:
    async def fail() -> None:
        async with LocalCluster() as cluster:
            cluster.stop_master()
            assert leftovers.processes()
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    leftovers.assert_none()


async def test_nothing_is_left_after_cancellation_at_any_time_of_the_start(leftovers: Leftovers) -> None:
    async def enter() -> None:
        async with LocalCluster():
            await anyio.sleep_forever()

    for delay in (0.0, 0.01, 0.02, 0.04, 0.08, 0.16):
        task = asyncio.create_task(enter())
        await asyncio.sleep(delay)  # no race to win: every moment has to be a good one
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        leftovers.assert_none()


async def test_cancelled_closing_still_leaves_nothing(leftovers: Leftovers) -> None:
    cluster = LocalCluster()
    await cluster.__aenter__()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await cluster.aclose()
    leftovers.assert_none()


async def test_closing_while_it_starts_ends_the_start(leftovers: Leftovers, fake_master: Callable[[str], Path]) -> None:
    cluster = LocalCluster(master_binary=fake_master("exec sleep 1000"), store=False)
    task = asyncio.create_task(cluster.__aenter__())
    await until(lambda: bool(leftovers.processes()))
    await cluster.aclose()
    with pytest.raises(ClosedError):
        await task
    leftovers.assert_none()


@one_loop
async def test_a_closed_cluster_is_closed() -> None:
    cluster = LocalCluster(store=False)
    assert repr(cluster) == "<LocalCluster not started>"
    with pytest.raises(ClosedError, match="async with"):
        _ = cluster.address
    async with cluster:
        with pytest.raises(ClosedError, match="once"):
            await cluster.__aenter__()
        assert cluster.master_pid
    await cluster.aclose()
    assert repr(cluster) == "<LocalCluster closed>"
    with pytest.raises(ClosedError, match="closed"):
        cluster.stop_master()
    with pytest.raises(ClosedError, match="once"):
        await cluster.__aenter__()


@one_loop
async def test_a_master_that_exits_at_once_is_reported_with_its_last_words(
    leftovers: Leftovers, fake_master: Callable[[str], Path]
) -> None:
    with pytest.raises(ConnectError, match=r"(?s)ended instead of serving.*the last words"):
        await LocalCluster(master_binary=fake_master("echo the last words; exit 3")).__aenter__()
    leftovers.assert_none()


@one_loop
async def test_a_master_that_never_listens_is_given_up(
    leftovers: Leftovers, fake_master: Callable[[str], Path]
) -> None:
    binary = fake_master("echo dozing >&2; exec sleep 1000")
    with pytest.raises(ConnectError, match=r"(?s)did not serve at 127.0.0.1:\d+ within 0.3 s.*dozing"):
        await LocalCluster(master_binary=binary, start_timeout=0.3).__aenter__()
    leftovers.assert_none()


@one_loop
async def test_a_missing_library_is_reported_with_its_cure(
    leftovers: Leftovers, fake_master: Callable[[str], Path]
) -> None:
    library = "error while loading shared libraries: libibverbs.so.1: cannot open shared object file"
    with pytest.raises(ConfigError, match="apt-get install libibverbs1"):
        await LocalCluster(master_binary=fake_master(f"echo {library}; exit 127")).__aenter__()
    leftovers.assert_none()


@one_loop
async def test_a_client_that_cannot_be_imported_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel for another Python: its master runs, its extension module does not load."""
    import importlib.util

    spec = importlib.util.find_spec("mooncake")
    assert spec is not None
    assert spec.submodule_search_locations
    installed = Path(spec.submodule_search_locations[0])
    (tmp_path / "mooncake").mkdir()
    for name in ("mooncake_master", "libasio.so", "libetcd_wrapper.so"):
        if (installed / name).exists():
            (tmp_path / "mooncake" / name).symlink_to(installed / name)
    for folder in installed.parent.glob("mooncake*.libs"):
        (tmp_path / folder.name).symlink_to(folder)
    (tmp_path / "mooncake" / "__init__.py").touch()
    (tmp_path / "mooncake" / "store.so").write_bytes(b"no module")
    with pytest.raises(ConfigError, match="built for this Python"):
        await LocalCluster(master_binary=tmp_path / "mooncake" / "mooncake_master").__aenter__()


@one_loop
async def test_a_port_that_was_taken_after_the_choice_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    is_free = ReservedPort.is_free
    thieves: list[socket.socket] = []

    def looks_free(port: ReservedPort) -> bool:
        free = is_free(port)
        if free and not thieves:
            thieves.append(socket.create_server(("127.0.0.1", port.number)))
        return free

    monkeypatch.setattr(ReservedPort, "is_free", looks_free)
    async with LocalCluster(store=False) as cluster:
        (thief,) = thieves
        taken = thief.getsockname()[1]
        assert not cluster.address.endswith(f":{taken}")
        thief.close()


def test_a_reserved_port_is_nobody_elses() -> None:
    ports = [ReservedPort() for _ in range(50)]
    try:
        assert len({port.number for port in ports}) == len(ports)
        assert all(port.number < 32_768 for port in ports)
    finally:
        for port in ports:
            port.release()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segment_bytes": 1000}, "segment_bytes is 1000"),
        ({"lease_ttl": -1}, "lease_ttl is -1"),
        ({"rpc_threads": 0}, "rpc_threads is 0"),
        ({"start_timeout": 0}, "start_timeout is 0"),
        ({"master_args": "--client_ttl=1"}, "master_args is the string '--client_ttl=1'"),
    ],
)
def test_an_unusable_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LocalCluster(**options)  # type: ignore[arg-type]


@one_loop
async def test_a_binary_that_cannot_be_run_is_named_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"no master binary at .*/absent; `pip install"):
        await LocalCluster(master_binary=tmp_path / "absent").__aenter__()
    (tmp_path / "plain").touch()
    with pytest.raises(ConfigError, match="chmod"):
        await LocalCluster(master_binary=tmp_path / "plain").__aenter__()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'aiomooncake\[non-cuda\]'"):
        await LocalCluster().__aenter__()


def test_cures_fit_the_complaints() -> None:
    assert suggest_cure("all is well") is None
    assert "libcudart.so.12 is missing" in str(
        suggest_cure("libcudart.so.12: cannot open shared object file: No such file or directory")
    )
    assert "pip install" in str(suggest_cure("No module named 'mooncake'"))


SCRIPT = textwrap.dedent(
    """
    import asyncio, os, sys, time
    from aiomooncake.local import LocalCluster

    async def main():
        cluster = LocalCluster()
        await cluster.__aenter__()
        if "fork" in sys.argv and os.fork() == 0:
            time.sleep(1000)
        print("up", flush=True)
        if "exit" not in sys.argv:
            await asyncio.sleep(1000)

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
    """
)


@contextlib.contextmanager
def script(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own with a cluster that it does not close; entered when the cluster is up."""
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come about within 10 s"
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_process_that_is_killed(leftovers: Leftovers, number: signal.Signals) -> None:
    with script() as process:
        assert len(leftovers.processes()) == 5  # it, two guards, master and client
        process.send_signal(number)
        process.wait()
        wait_until(lambda: not leftovers.processes())
    leftovers.assert_none()


def test_nothing_outlives_a_process_that_forgets_to_close(leftovers: Leftovers) -> None:
    with script("exit") as process:
        process.wait()
        wait_until(lambda: not leftovers.processes())
    leftovers.assert_none()


def test_a_surviving_fork_does_not_keep_the_cluster_alive(leftovers: Leftovers) -> None:
    """It holds every descriptor that its parent had."""
    with script("fork") as process:
        process.kill()
        process.wait()
        wait_until(lambda: len(leftovers.processes()) == 1)
        (fork,) = leftovers.processes()
        os.kill(fork, signal.SIGKILL)
        wait_until(lambda: not leftovers.processes())


@one_loop
async def test_the_master_does_not_outlive_its_guard(leftovers: Leftovers) -> None:
    async with LocalCluster(store=False) as cluster:
        (guard,) = leftovers.processes() - {cluster.master_pid}
        os.kill(guard, signal.SIGKILL)
        await until(lambda: not leftovers.processes())
        assert "no master" in repr(cluster)
