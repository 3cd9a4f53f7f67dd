"""`lookup --layout` and `explain`: layouts, prompts, and what is shown of them."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aiomooncake import ConfigError, Layout, LookupResult, SGLangPool, StoreError, VLLMGroup
from aiomooncake.cli.explain import Recorder
from aiomooncake.cli.layouts import build_layout
from aiomooncake.cli.page_map import PageMap
from aiomooncake.reply import Reply

from .commands import on_terminal, run, without_styles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from subprocess import CompletedProcess

    from ..conftest import SharedCluster

TOKENS = list(range(1, 4 * 12 + 4))  # 12 pages, and 3 tokens that fill none
SERVER = {
    "enabled": True,
    "backend": "mooncake",
    "page_size": 4,
    "hicache_object_layout": {
        "pools": [
            {"pool": "kv", "suffixes": ["_0_k", "_0_v"], "hit_policy": "all_pages"},
            {"pool": "indexer", "suffixes": ["__indexer"], "hit_policy": "all_pages"},
            {"pool": "swa", "suffixes": ["__swa"], "hit_policy": "trailing_pages", "trailing_pages": 2},
        ],
        "key_prefix": "cli-prompts",
        "is_mla_backend": False,
        "pp_rank": 0,
        "pp_size": 1,
    },
}
LAYOUT = Layout.from_sglang(SERVER)
PAGES = LAYOUT.page_hashes(TOKENS)


@pytest.fixture(scope="module")
def master(cluster: SharedCluster) -> str:
    """Holds 8 pages of kv and half of the next, 7 of indexer, and the pages 3 to 5 of swa."""
    keys = LAYOUT.object_keys(PAGES[:8], "kv") + LAYOUT.object_keys(PAGES[8:9], "kv")[:1]
    keys += LAYOUT.object_keys(PAGES[:7], "indexer") + LAYOUT.object_keys(PAGES[3:6], "swa")
    asyncio.run(cluster.put(keys))
    return cluster.address


@pytest.fixture
def layout_file(tmp_path: Path) -> str:
    file = tmp_path / "layout.json"
    file.write_text(json.dumps(SERVER))
    return str(file)


@contextmanager
def sglang_server(reply: object) -> Iterator[tuple[str, list[str]]]:
    """A server that answers every GET so: its URL, and the paths asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", paths
        finally:
            server.shutdown()
            thread.join()


def look_up(master: str, layout: str, *arguments: str, tokens: object = TOKENS) -> CompletedProcess[bytes]:
    return run("lookup", master, "--layout", layout, "--tokens", "-", *arguments, stdin=str(tokens).encode())


def test_a_pipe_gets_the_number_of_pages_that_can_be_restored(master: str, layout_file: str) -> None:
    done = look_up(master, layout_file)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"6\n", b"")
    assert look_up(master, layout_file, tokens=TOKENS[: 6 * 4]).returncode == 0


def test_json_has_what_each_pool_allows(master: str, layout_file: str) -> None:
    answer = json.loads(look_up(master, layout_file, "--json").stdout)
    assert (answer["asked"], answer["pages"], answer["kv_pages"]) == (12, 6, 8)
    assert answer["pool_pages"] == {"kv": 8, "indexer": 7, "swa": 6}


def test_page_hashes_can_be_given_as_they_are(master: str, layout_file: str) -> None:
    assert run("lookup", master, "--layout", layout_file, *PAGES[:6]).stdout == b"6\n"


def test_a_running_server_is_asked_for_its_layout(master: str) -> None:
    with sglang_server(SERVER) as (url, paths):
        assert look_up(master, url).stdout == b"6\n"
        assert look_up(master, f"{url}/elsewhere").stdout == b"6\n"
    assert paths == ["/get_hicache_l3_cache_layout", "/elsewhere"]


def test_a_server_that_refuses_is_quoted(master: str) -> None:
    with sglang_server({"enabled": False, "reason": "no HiCache here"}) as (url, _):
        done = look_up(master, url)
    assert done.returncode == 2
    assert b"no HiCache here" in done.stderr


def test_what_goes_into_the_hashes_changes_the_answer(master: str, layout_file: str) -> None:
    for option in (("--cache-salt", "x"), ("--extra-key", "x"), ("--bigram",)):
        assert look_up(master, layout_file, *option).stdout == b"0\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--layout", "/nonexistent/layout", "hash"), "cannot read a layout from /nonexistent/layout"),
        (("--layout", "LAYOUT"), "no page hashes"),
        (("--layout", "LAYOUT", "--tokens", "1", "2"), "do not fill a page of 4"),
        (("--layout", "LAYOUT", "--tokens", "1", "two"), "whole numbers"),
        (("--layout", "LAYOUT", "--cache-salt", "x", "hash"), "add --tokens"),
        (("--layout", "LAYOUT", "--prefix", "hash"), "--prefix"),
        (("--tokens", "1"), "need --layout"),
        (("--layout", "KEYS", "hash"), "holds no JSON"),
    ],
)
def test_what_does_not_make_a_prompt_is_a_usage_error(
    master: str, layout_file: str, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "keys").write_text("no json")
    files = {"LAYOUT": layout_file, "KEYS": str(tmp_path / "keys")}
    done = run("lookup", master, *(files.get(argument, argument) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, b"")
    assert complaint in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_layout_server_that_is_away_ends_it_with_3(master: str) -> None:
    with sglang_server(SERVER) as (url, _):
        pass
    done = look_up(master, url)
    assert done.returncode == 3
    assert f"no layout from {url}" in done.stderr.decode()


@pytest.mark.parametrize(
    ("description", "layout"),
    [
        (SERVER, LAYOUT),
        ([SERVER, SERVER], LAYOUT),
        (
            {"sglang": {"is_mla_model": True, "pools": ["kv", {"name": "swa", "trailing_pages": 3}]}},
            Layout.sglang(is_mla_model=True, pools=["kv", SGLangPool("swa", trailing_pages=3)]),
        ),
        (
            {"vllm": {"model": "m", "tp_size": 2, "groups": [{"kind": "mla"}]}},
            Layout.vllm("m", tp_size=2, groups=[VLLMGroup(kind="mla")]),
        ),
        ({"lmcache": {"model_name": "m", "dtype": "half"}}, Layout.lmcache("m", dtype="half")),
    ],
)
def test_layouts_are_described_by_servers_or_by_options(description: object, layout: Layout) -> None:
    assert build_layout(description, bigram=False) == layout


@pytest.mark.parametrize(
    "description", [None, 3, {}, {"vllm": []}, {"vllm": {"modell": "m"}}, {"sglang": {"pools": [{"nam": "kv"}]}}]
)
def test_what_describes_no_layout_is_refused(description: object) -> None:
    with pytest.raises(ConfigError):
        build_layout(description, bigram=False)


def explain(master: str, layout: str, *arguments: str) -> CompletedProcess[bytes]:
    return run("explain", master, "--layout", layout, "--tokens", "-", *arguments, stdin=str(TOKENS).encode())


def map_lines(text: str) -> dict[str, str]:
    lines = text[text.index("\npage ") :].splitlines()
    return {line[:9].strip(): line[9:] for line in lines if line[:9].strip() in ("kv", "indexer", "swa")}


def test_explain_maps_every_page_of_every_pool(master: str, layout_file: str) -> None:
    done = explain(master, layout_file, "--all")
    assert (done.returncode, done.stderr) == (1, b"")
    text = done.stdout.decode()
    assert text.startswith("6 of 12 pages can be restored\n")
    assert map_lines(text) == {"kv": "########+...", "indexer": "#######.....", "swa": "...###......"}
    assert f"page 8: {LAYOUT.object_keys(PAGES[8:9], 'kv')[1]} " in text
    assert f"page 7: {LAYOUT.object_keys(PAGES[7:8], 'indexer')[0]} " in text


def test_explain_shows_what_a_lookup_does_not_ask(master: str, layout_file: str) -> None:
    lines = map_lines(explain(master, layout_file).stdout.decode())
    assert lines["kv"] == "########+..."
    assert lines["indexer"] == "#######.----"
    assert lines["swa"] == "----##..----"


def test_explain_lists_the_exact_keys_on_request(master: str, layout_file: str) -> None:
    text = explain(master, layout_file, "--all", "--keys").stdout.decode()
    rows = [line.split("\t") for line in text.splitlines() if "\t" in line]
    assert [row[3] for row in rows] == [key for pool in LAYOUT.pools for key in LAYOUT.object_keys(PAGES, pool.name)]
    assert rows[0][:3] == ["hit", "kv", "0"]
    assert rows[17][:3] == ["missing", "kv", "8"]


def test_explain_says_what_to_compare_when_nothing_is_there(master: str, layout_file: str) -> None:
    text = explain(master, layout_file, "--cache-salt", "other").stdout.decode()
    assert "Nothing is stored under these keys" in text
    assert "? " in text  # what the sidecars allow was not asked


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_explain_fits_a_terminal(master: str, layout_file: str, tmp_path: Path, columns: int) -> None:
    ids = tmp_path / "ids"
    ids.write_text(str(list(range(1, 4 * 250))))
    status, text = on_terminal(
        "explain", master, "--layout", layout_file, "--tokens", "-f", str(ids), "--all", columns=columns
    )
    assert status == 1
    lines = without_styles(text).splitlines()
    assert max(map(len, lines)) <= columns
    assert sum(line.startswith("kv  ") and set(line[9:].strip()) <= set("#+.") for line in lines) >= 3


class FaultyEngine:
    """Answers an error code for one key."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def batch_exists(self, keys: Sequence[str]) -> Any:
        if self._key in keys:
            raise StoreError(-1010, key=self._key)
        return np.ones(len(keys), np.bool_)

    async def exists(self, key: str) -> bool:
        return bool((await self.batch_exists([key]))[0])


def test_an_error_of_one_key_is_an_answer_and_hides_no_other() -> None:
    recorder = Recorder(FaultyEngine("b"))  # type: ignore[arg-type]
    assert asyncio.run(recorder.ask(["a", "b", "c"])) == Reply(b"\1\2\1", {1: -1010})
    assert recorder.answers == {"a": 1, "b": -1010, "c": 1}


def test_an_error_is_shown_as_one() -> None:
    answers = dict.fromkeys(LAYOUT.object_keys(PAGES[:3], "kv"), 1)
    answers[LAYOUT.object_keys(PAGES[1:2], "kv")[1]] = -1010
    page_map = PageMap(PAGES[:3], LAYOUT, answers, LookupResult(kv_pages=1, pages=0, pool_pages={"kv": 1}))
    assert [page_map.states(pool) for pool in LAYOUT.pools] == ["#!#", "---", "---"]
    assert ("error -1010", "kv", 1, LAYOUT.object_keys(PAGES[1:2], "kv")[1]) in list(page_map.objects())
