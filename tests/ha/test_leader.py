"""EtcdLeader against a real etcd, whose network and process fail; and against peers that are no etcd."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiomooncake.errors import ConfigError, ConnectError
from aiomooncake.target import Address
from aiomooncake.testing import FaultProxy, ScriptedPeer
from aiomooncake.transport import etcd as etcd_module
from aiomooncake.transport import leader as leader_module
from aiomooncake.transport.etcd import Entry, EtcdError, EtcdMember, open_http
from aiomooncake.transport.leader import EtcdLeader

from .following import Told, following, key_of
from .gateway import ScriptedEtcd, address_of, event, http_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .etcd_server import EtcdServer

pytestmark = pytest.mark.anyio

A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))

# For what starts a process of its own and for what the loop makes no difference.
one_loop = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a hung etcd be noticed sooner."""
    monkeypatch.setattr(leader_module, "_PROBE_INTERVAL", 0.1)
    monkeypatch.setattr(etcd_module, "_ANSWER_LIMIT", 0.5)


@pytest.fixture
def nobody() -> Iterator[Address]:
    """An address where connections are refused."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield Address(*unused.getsockname())


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.005)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# ---- read ---------------------------------------------------------------------------------------------------------


async def test_no_leader_is_read_where_none_was_ever_named(etcd: EtcdServer, cluster_name: str) -> None:
    assert await EtcdLeader([etcd.address], cluster_name).read() is None


@pytest.mark.parametrize(
    ("value", "leader"),
    [
        ("10.0.0.1:50051", Address("10.0.0.1", 50051)),
        ("master-0.mooncake:50051", Address("master-0.mooncake", 50051)),
        ("[fd00::1]:50051", Address("fd00::1", 50051)),
    ],
)
async def test_the_leader_is_read(etcd: EtcdServer, cluster_name: str, value: str, leader: Address) -> None:
    await etcd.put(key_of(cluster_name), value)
    assert await EtcdLeader([etcd.address], cluster_name).read() == leader


async def test_a_deleted_leader_is_none(etcd: EtcdServer, cluster_name: str) -> None:
    await etcd.put(key_of(cluster_name), str(A))
    await etcd.delete(key_of(cluster_name))
    assert await EtcdLeader([etcd.address], cluster_name).read() is None


GARBAGE = [b"", b"nonsense", b"10.0.0.1", b"10.0.0.1:0", b"mooncake://10.0.0.1:1", b"10.0.0.1:1,10.0.0.2:1", b"\xff:1"]


@pytest.mark.parametrize("value", GARBAGE)
async def test_a_value_that_is_no_address_names_nobody_and_is_logged(
    etcd: EtcdServer, cluster_name: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await etcd.put(key_of(cluster_name), value)
    assert await EtcdLeader([etcd.address], cluster_name).read() is None
    (warning,) = warnings_in(caplog)
    assert cluster_name in warning


async def test_a_dead_endpoint_is_passed_over(etcd: EtcdServer, cluster_name: str, nobody: Address) -> None:
    await etcd.put(key_of(cluster_name), str(A))
    assert await EtcdLeader([nobody, etcd.address], cluster_name).read() == A


async def test_the_endpoint_that_answered_is_asked_first_the_next_time(etcd: EtcdServer, cluster_name: str) -> None:
    async with FaultProxy(*etcd.address) as bad, FaultProxy(*etcd.address) as good:
        bad.requests.cut_after(0)
        leader = EtcdLeader([address_of(bad.address), address_of(good.address)], cluster_name)
        for _ in range(3):
            await leader.read()
        assert (bad.accepted, good.accepted) == (1, 3)


@pytest.mark.usefixtures("quick")
async def test_a_hung_endpoint_is_passed_over(etcd: EtcdServer, cluster_name: str) -> None:
    await etcd.put(key_of(cluster_name), str(A))
    async with FaultProxy(*etcd.address) as hung:
        hung.answers.hold()
        assert await EtcdLeader([address_of(hung.address), etcd.address], cluster_name).read() == A


async def test_without_any_etcd_the_error_names_every_endpoint_and_its_cause(nobody: Address) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with ScriptedPeer(hang_up) as peer:
        silent = address_of(peer.address)
        with pytest.raises(ConnectError) as caught:
            await EtcdLeader([nobody, silent], "some-cluster").read()
    message = str(caught.value)
    assert "some-cluster" in message
    assert f"{nobody}: [Errno 111]" in message
    assert f"; {silent}: " in message  # a reset or an end, as the loop has it


ANSWERS_OF_NO_ETCD = {
    "another protocol": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "another site": http_answer(b"Not Found\n", "404 Not Found"),
    "an etcd without a quorum": http_answer(
        b'{"error":"etcdserver: request timed out","code":14}', "503 Service Unavailable"
    ),
    "no JSON": http_answer(b"<html>"),
    "deep JSON": http_answer(b"[" * 100_000),
    "other JSON": http_answer(b"[1]"),
    "no revision": http_answer(b'{"header":{}}'),
    "a value that is not base64": http_answer(b'{"header":{"revision":"2"},"kvs":[{"value":"?"}]}'),
    "half an answer": http_answer(b'{"header":{"revision":"2"}}')[:-1],
    "false compression": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
}


@pytest.mark.parametrize("answer", ANSWERS_OF_NO_ETCD.values(), ids=ANSWERS_OF_NO_ETCD)
async def test_what_is_no_etcd_is_a_connect_error(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()

    async with ScriptedPeer(talk) as peer:
        with pytest.raises(ConnectError, match="no etcd tells"):
            await EtcdLeader([address_of(peer.address)], "c").read()


NAMES = ("header", "revision", "kvs", "value", "result", "events", "kv", "type", "mod_revision", "canceled")
JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(NAMES), inner),
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_answer_raises_anything_but_an_etcd_error(body: bytes) -> None:
    for parse in (etcd_module._parse_range, etcd_module._parse_watch):
        with contextlib.suppress(EtcdError):
            assert isinstance(parse(body), Entry | None)


# ---- watch --------------------------------------------------------------------------------------------------------


async def test_a_watch_tells_the_leader_and_every_change(etcd: EtcdServer, cluster_name: str) -> None:
    key = key_of(cluster_name)
    async with following([etcd.address], cluster_name) as told:
        await told.wait(None)
        await etcd.put(key, str(A))
        await told.wait(None, A)
        await etcd.put(key, str(B))
        await told.wait(None, A, B)
        await etcd.delete(key)
        await told.wait(None, A, B, None)


async def test_a_watch_tells_the_leader_that_is_there_already(etcd: EtcdServer, cluster_name: str) -> None:
    await etcd.put(key_of(cluster_name), str(A))
    async with following([etcd.address], cluster_name) as told:
        await told.wait(A)


async def test_the_same_leader_named_again_is_no_change(etcd: EtcdServer, cluster_name: str) -> None:
    async with following([etcd.address], cluster_name) as told:
        await told.wait(None)
        for leader in (A, A, B):
            await etcd.put(key_of(cluster_name), str(leader))
        await told.wait(None, A, B)


async def test_changes_of_other_clusters_are_not_told(etcd: EtcdServer, cluster_name: str) -> None:
    async with following([etcd.address], cluster_name) as told:
        await told.wait(None)
        for other in (cluster_name[:-1], cluster_name + "2", "a"):
            await etcd.put(key_of(other), str(B))
        await etcd.put(key_of(cluster_name), str(A))
        await told.wait(None, A)


async def test_garbage_changes_nothing_and_is_logged_once(
    etcd: EtcdServer, cluster_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader_module, "_PROBE_INTERVAL", 0.01)
    async with FaultProxy(*etcd.address) as proxy, following([address_of(proxy.address)], cluster_name) as told:
        await told.wait(None)
        await etcd.put(key_of(cluster_name), str(A))
        await told.wait(None, A)
        await etcd.put(key_of(cluster_name), "nonsense")
        seen = proxy.answers.forwarded
        await proxy.wait_until(lambda: proxy.answers.forwarded > seen + 2000)  # it is read several times
        await etcd.put(key_of(cluster_name), str(B))
        await told.wait(None, A, B)
    (warning,) = warnings_in(caplog)
    assert "nonsense" in warning


async def test_of_several_changes_in_one_message_the_last_counts() -> None:
    message = json.dumps({"result": {"events": [event(b"10.0.0.1:1", 2), event(None, 3), event(b"10.0.0.1:2", 4)]}})
    script = ScriptedEtcd(messages=[message.encode()])
    async with ScriptedPeer(script) as peer, following([address_of(peer.address)], "c") as told:
        await told.wait(None, B)


async def test_an_event_older_than_what_was_read_is_ignored() -> None:
    messages = [{"result": {"events": [event(value, revision)]}} for value, revision in [(b"10.0.0.1:2", 3), (None, 6)]]
    script = ScriptedEtcd(b"10.0.0.1:1", messages=[json.dumps(message).encode() for message in messages])
    script.revision = 5
    async with ScriptedPeer(script) as peer, following([address_of(peer.address)], "c") as told:
        await told.wait(A, None)


@pytest.mark.usefixtures("quick")
async def test_a_change_that_a_watch_keeps_silent_about_is_noticed_and_the_watch_begun_anew() -> None:
    script = ScriptedEtcd()
    async with ScriptedPeer(script) as peer, following([address_of(peer.address)], "c") as told:
        await told.wait(None)
        script.value, script.revision = b"10.0.0.1:1", 2
        await told.wait(None, A)
        script.value, script.revision = b"10.0.0.1:2", 3
        await told.wait(None, A, B)
        await until(lambda: script.watches >= 2)


async def test_an_endpoint_that_is_dead_from_the_start_is_passed_over(
    etcd: EtcdServer, cluster_name: str, nobody: Address
) -> None:
    async with following([nobody, etcd.address], cluster_name) as told:
        await told.wait(None)
        await etcd.put(key_of(cluster_name), str(A))
        await told.wait(None, A)


@pytest.mark.parametrize("ending", ["cut", "hang_up"])
async def test_what_changed_while_the_connection_was_gone_is_told(
    etcd: EtcdServer, cluster_name: str, ending: str
) -> None:
    async with FaultProxy(*etcd.address) as proxy, following([address_of(proxy.address)], cluster_name) as told:
        await told.wait(None)
        proxy.refuse()
        await getattr(proxy, ending)()
        for leader in (A, B, C):
            await etcd.put(key_of(cluster_name), str(leader))
        proxy.resume()
        await told.wait(None, C)
        await etcd.put(key_of(cluster_name), str(A))
        await told.wait(None, C, A)


async def test_no_change_between_reading_and_watching_is_missed(etcd: EtcdServer, cluster_name: str) -> None:
    async with FaultProxy(*etcd.address) as proxy:
        told = Told()

        def change_before_the_watch(leader: Address | None) -> None:
            proxy.requests.hold()  # it has been read, and the watch is the next that is sent
            told(leader)

        watching = asyncio.ensure_future(
            EtcdLeader([address_of(proxy.address)], cluster_name).watch(change_before_the_watch)
        )
        await told.wait(None)
        await proxy.requests.wait_held()
        await etcd.put(key_of(cluster_name), str(A))
        proxy.requests.release()
        await told.wait(None, A)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching


@pytest.mark.usefixtures("quick")
async def test_a_hung_endpoint_is_left_for_another(etcd: EtcdServer, cluster_name: str) -> None:
    async with FaultProxy(*etcd.address) as first, FaultProxy(*etcd.address) as second:
        endpoints = [address_of(proxy.address) for proxy in (first, second)]
        async with following(endpoints, cluster_name) as told:
            await told.wait(None)
            first.answers.hold()
            first.requests.hold()
            await etcd.put(key_of(cluster_name), str(A))
            await told.wait(None, A)
            assert second.accepted > 0


async def test_a_watch_whose_revision_was_compacted_ends_and_says_so(etcd: EtcdServer, cluster_name: str) -> None:
    key = key_of(cluster_name)
    revisions = [await etcd.put(key, str(leader)) for leader in (A, B)]
    await etcd.compact(revisions[1])
    seen: list[Entry] = []
    async with open_http() as http:
        with pytest.raises(EtcdError, match="compact"):
            await EtcdMember(etcd.address).watch(http, key.encode(), after=revisions[0] - 1, on_entry=seen.append)
    assert seen == []


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CONFIRMED = b'1c\r\n{"result":{"created":true}}\n\r\n'

ENDS_OF_A_WATCH = {
    "an orderly end": (STREAM + CONFIRMED + b"0\r\n\r\n", "ended the watch"),
    "a disconnection": (STREAM + CONFIRMED, "closed connection"),
    "an error": (STREAM + b'12\r\n{"error":{"a":1}}\n\r\n', "unexpected answer"),
    "another site": (http_answer(b"Not Found", "404 Not Found"), "unexpected answer: b'Not Found'"),
    "a line without end": (STREAM + b"1001\r\n%s\r\n" % bytes(4097), "more than 4096 bytes"),
}


@pytest.mark.parametrize(("answer", "reason"), ENDS_OF_A_WATCH.values(), ids=ENDS_OF_A_WATCH)
async def test_a_watch_that_ends_says_how(answer: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "_LARGEST_MESSAGE", 4096)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}}")
        writer.write(answer)

    changes: list[Entry] = []
    async with ScriptedPeer(talk) as peer, open_http() as http:
        with pytest.raises(EtcdError, match=reason):
            await EtcdMember(address_of(peer.address)).watch(http, b"k", after=0, on_entry=changes.append)
        assert changes == []


async def test_compaction_between_reading_and_watching_loses_no_change(etcd: EtcdServer, cluster_name: str) -> None:
    async with FaultProxy(*etcd.address) as proxy, following([address_of(proxy.address)], cluster_name) as told:
        await told.wait(None)
        proxy.refuse()
        await proxy.cut()
        await etcd.put(key_of(cluster_name), str(A))
        await etcd.compact(await etcd.put(key_of(cluster_name), str(B)))
        proxy.resume()
        await told.wait(None, B)


@one_loop
async def test_etcd_killed_and_started_again_is_followed_on(
    own_etcd: EtcdServer, cluster_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = key_of(cluster_name)
    await own_etcd.put(key, str(A))
    async with following([own_etcd.address], cluster_name) as told:
        await told.wait(A)
        own_etcd.kill()
        await own_etcd.start()
        await own_etcd.put(key, str(B))
        await told.wait(A, B)
        await own_etcd.start_anew()  # its revisions begin again, below those that were seen
        await told.wait(A, B, None)
        await own_etcd.put(key, str(C))
        await told.wait(A, B, None, C)
    assert all(cluster_name in warning for warning in warnings_in(caplog))


@one_loop
@pytest.mark.usefixtures("quick")
async def test_etcd_stopped_for_a_while_is_followed_on(
    own_etcd: EtcdServer, cluster_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with following([own_etcd.address], cluster_name) as told:
        await told.wait(None)
        own_etcd.stop()
        await until(lambda: bool(warnings_in(caplog)))
        own_etcd.go_on()
        await own_etcd.put(key_of(cluster_name), str(A))
        await told.wait(None, A)
    assert f"etcd {own_etcd.address}: no answer for 0.5 s" in warnings_in(caplog)[0]


@pytest.mark.usefixtures("quick")
async def test_an_outage_is_logged_once_and_its_end_as_well(
    etcd: EtcdServer, cluster_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, leader_module.__name__)
    async with FaultProxy(*etcd.address) as proxy:
        proxy.refuse()
        async with following([address_of(proxy.address)] * 2, cluster_name) as told:
            await until(lambda: len(caplog.records) >= 6)
            proxy.resume()
            await told.wait(None)
            await until(lambda: caplog.records[-1].levelno == logging.INFO)
    levels = [record.levelname for record in caplog.records]
    assert levels[:2] == ["DEBUG", "WARNING"]
    assert set(levels[2:-1]) == {"DEBUG"}


async def test_cancelling_while_watching_closes_the_connections(etcd: EtcdServer, cluster_name: str) -> None:
    async with FaultProxy(*etcd.address) as proxy:
        async with following([address_of(proxy.address)], cluster_name) as told:
            await told.wait(None)
            assert proxy.open > 0
        await proxy.wait_until(lambda: proxy.open == 0)


async def test_cancelling_while_etcd_hangs_closes_the_connection() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        asked.set()
        await reader.read()
        closed.set()

    async with ScriptedPeer(hang) as peer:
        async with following([address_of(peer.address)], "c"):
            await asked.wait()
        await closed.wait()


async def test_cancelling_between_attempts_ends_the_watch(nobody: Address, caplog: pytest.LogCaptureFixture) -> None:
    async with following([nobody], "c"):
        await until(lambda: bool(caplog.records))


async def test_a_cancel_scope_ends_a_watch(etcd: EtcdServer, cluster_name: str) -> None:
    async with FaultProxy(*etcd.address) as proxy:
        with anyio.CancelScope() as scope:
            await EtcdLeader([address_of(proxy.address)], cluster_name).watch(lambda _: scope.cancel())
        assert scope.cancelled_caught
        await proxy.wait_until(lambda: proxy.open == 0)


@pytest.mark.parametrize("at", [1, 2])
async def test_what_the_callback_raises_comes_out_as_it_is(etcd: EtcdServer, cluster_name: str, at: int) -> None:
    calls = 0

    def refuse(leader: Address | None) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyError(leader)

    await etcd.put(key_of(cluster_name), str(A))
    watching = asyncio.ensure_future(EtcdLeader([etcd.address], cluster_name).watch(refuse))
    await until(lambda: calls > 0)
    await etcd.put(key_of(cluster_name), str(B))
    with pytest.raises(KeyError):
        await watching


# ---- what it is made of -------------------------------------------------------------------------------------------


def test_without_httpx_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["httpx"] = None  # as if it were not installed
from aiomooncake.errors import ConfigError
from aiomooncake.target import Address
from aiomooncake.transport.leader import EtcdLeader
try:
    EtcdLeader([Address("127.0.0.1", 2379)], "c")
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'aiomooncake[ha]'" in done.stdout


def test_no_endpoints_are_refused() -> None:
    with pytest.raises(ConfigError, match="endpoints is empty"):
        EtcdLeader([], "c")


def test_an_address_that_fits_no_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="no address of an etcd"):
        EtcdLeader([Address("a\tb", 1)], "c")


async def test_proxies_of_the_environment_are_not_asked(
    etcd: EtcdServer, cluster_name: str, nobody: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{nobody}")
    assert await EtcdLeader([etcd.address], cluster_name).read() is None
