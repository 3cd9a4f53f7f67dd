"""How much faster is a lookup than SGLang's own, on the same master?

    python -m benchmarks.sglang

SGLang's `MooncakeStore.batch_exists_v2` itself is asked, not a replica. No GPU is needed: `pip install torch requests`
(a CPU build will do) and `pip install --no-deps sglang==0.5.23`, next to `pip install 'aiomooncake[non-cuda]'`.

Nothing that the measured call runs through is replaced. What its module imports besides, and only names in annotations
and type checks, are empty classes here, because the originals load kernels. The host pools are made up too: a look-up
reads no page, and SGLang describes the layout itself (`describe_l3_object_layout`), just as a server would.

All take turns of twelve questions, in an order that changes, so that whatever else the machine does falls on all
alike. What follows
the stored prefix is new in each question, as with real prompts: no predictor can have seen it. SGLang is called on
this thread, without the hop that an asyncio program would need on top.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import random
import sys
import time
from contextlib import ExitStack
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import uvloop

import aiomooncake as am
from aiomooncake.local import LocalCluster

from .measure import latency, page_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_ROUNDS = 20
# Questions that one way asks before it is another's turn; the first ones pay for the caches that the other left cold.
_BLOCK = 12
_UNCOUNTED = 2
_PAGE_SIZE = 64
_TRAILING_PAGES = 4
# What else the master holds. A key costs it several times less when it holds next to nothing, as no real one does.
_OTHER_OBJECTS = 300_000
_STORAGE = "sglang.srt.mem_cache.hicache_storage"
_BACKEND = "sglang.srt.mem_cache.storage.mooncake_store.mooncake_store"
_TYPES_ONLY = {
    "sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler": ("DevicePoolEntry",),
    "sglang.srt.mem_cache.memory_pool_host": ("DeepSeekV4PagedHostPool",),
    "sglang.srt.mem_cache.pool_host": ("HostKVCache", "HostTensorAllocator"),
    "sglang.srt.mem_cache.pool_host.mla": ("MLATokenToKVPoolHost",),
    "sglang.srt.observability.metrics_collector": ("StorageMetrics",),
}


class _Model(NamedTuple):
    """What SGLang keeps for a model; KV and all these pools, or these alone on a logical anchor."""

    title: str
    name: str
    has_kv: bool
    whole: tuple[str, ...]
    trailing: tuple[str, ...] = ()


_V4 = _Model(
    "six DeepSeek-V4 pools",
    "deepseek-ai/DeepSeek-V4",
    False,
    ("deepseek_v4_c4", "deepseek_v4_c4_indexer", "deepseek_v4_c128"),
    ("deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state", "deepseek_v4_c128_state"),
)
_MLA = _Model("MLA + indexer", "deepseek-ai/DeepSeek-V3.2", True, ("indexer",))

# Ways to ask: (predict, restorable).
_WAYS = {
    "lookup": (True, False),
    "lookup, predict=False": (False, False),
    "restorable=True": (True, True),
    "restorable=True, predict=False": (False, True),
}


class _Case(NamedTuple):
    model: _Model
    pages: int
    stored: int
    targets: dict[str, float]


_CASES = (
    _Case(_V4, 512, 512, {"lookup": 4, "restorable=True": 2.5}),
    _Case(_V4, 512, 26, {"lookup": 15}),
    _Case(_MLA, 2048, 102, {"lookup": 12}),
)


class _HostPool:
    """Pages that nobody reads or writes: enough to be registered, and for SGLang to name the objects of a page."""

    page_size = _PAGE_SIZE

    def __init__(self, kv_buffer: object = None) -> None:
        self.kv_buffer = kv_buffer

    def get_hybrid_pool_buffer(self) -> list[object]:
        return [] if self.kv_buffer is None else [self.kv_buffer]

    def get_ksize_per_token(self) -> int:
        return 1

    def get_page_buffer_meta(self, indices: object) -> tuple[list[int], list[int]]:
        return [0], [_PAGE_SIZE]


class _SGLang:
    """SGLang's Mooncake backend as the only rank of a server of `model` has it."""

    def __init__(self, model: _Model, master: str) -> None:
        storage = importlib.import_module(_STORAGE)
        torch = importlib.import_module("torch")
        self._store: Any = importlib.import_module(_BACKEND).MooncakeStore(
            storage.HiCacheStorageConfig(
                tp_rank=0,
                tp_size=1,
                pp_rank=0,
                pp_size=1,
                attn_cp_rank=0,
                attn_cp_size=1,
                is_mla_model=True,
                enable_storage_metrics=False,
                is_page_first_layout=True,
                model_name=model.name,
                extra_config={
                    "master_server_address": master,
                    "metadata_server": "P2PHANDSHAKE",
                    "protocol": "tcp",
                    "local_hostname": "127.0.0.1",
                    "global_segment_size": 0,  # the cluster's own client holds the data
                },
            )
        )
        anchor = torch.zeros(_PAGE_SIZE, dtype=torch.uint8) if model.has_kv else None
        self._store.register_mem_pool_host(_HostPool(anchor))
        policies = storage.PoolHitPolicy
        pools = [(storage.PoolName(name), policies.ALL_PAGES) for name in model.whole]
        pools += [(storage.PoolName(name), policies.TRAILING_PAGES) for name in model.trailing]
        self._transfers = []
        specs = []
        for name, policy in pools:
            trails = policy == policies.TRAILING_PAGES
            self._store.register_mem_host_pool_v2(_HostPool(), name)
            # Of a trailing pool's keys only their number counts here.
            keys = [""] * _TRAILING_PAGES if trails else None
            self._transfers.append(storage.PoolTransfer(name, keys=keys, hit_policy=policy))
            specs.append(storage.SidecarPoolSpec(name, storage.PoolName.SWA if trails else storage.PoolName.KV, policy))
        self.layout = am.Layout.from_sglang(
            self._store.describe_l3_object_layout(
                sidecar_pool_specs=specs, swa_trailing_pages=_TRAILING_PAGES, page_size=_PAGE_SIZE
            )
        )

    def ask(self, page_hashes: list[str]) -> Any:
        """SGLang's `PoolTransferResult`."""
        return self._store.batch_exists_v2(page_hashes, self._transfers)

    def close(self) -> None:
        self._store.store.close()


def _prepare_import() -> None:
    """Let SGLang's backend be imported where only its source and torch are; exit where even they are not."""
    missing = [name for name in ("sglang", "torch", "requests", "mooncake") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"{', '.join(missing)} cannot be imported. pip install torch requests 'aiomooncake[non-cuda]'; "
            "pip install --no-deps sglang==0.5.23"
        )
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # it is read when the library loads
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    sys.modules["sglang"] = importlib.util.module_from_spec(spec)  # not executed: it loads the whole frontend
    for name, classes in _TYPES_ONLY.items():
        module = ModuleType(name)
        for class_name in classes:
            setattr(module, class_name, type(class_name, (), {}))
        sys.modules[name] = module


def _prompts(pages: int, stored: list[str]) -> Callable[[], list[str]]:
    """Makes page hashes of prompts that begin with what is stored and go on with what is not."""
    source = random.Random(0)

    def make() -> list[str]:
        tokens = [source.getrandbits(17) for _ in range(pages - len(stored))]
        return stored + am.sglang_page_hashes(tokens, 1, prior_hash=stored[-1])

    return make


def _check(theirs: Any, ours: am.LookupResult) -> None:
    """That both answers say the same."""
    assert ours.pages == theirs.kv_hit_pages, (ours, theirs)
    if ours.restorable is not None:
        assert ours.restorable.tolist() == theirs.restorable_prefix_pages, (ours, theirs)
        reported = [(str(name), pages) for name, pages in theirs.extra_pool_hit_pages.items()]
        assert list(ours.pool_pages.items()) == reported, (ours, theirs)


async def _measure(case: _Case, sglang: _SGLang, engines: dict[bool, am.Engine], cluster: LocalCluster) -> None:
    stored = am.sglang_page_hashes([case.stored] * case.stored, 1, extra_key=str(case.pages))
    await cluster.put([key for pool in sglang.layout.pools for key in sglang.layout.object_keys(stored, pool.name)])
    prompt = _prompts(case.pages, stored)

    async def theirs(page_hashes: list[str]) -> Any:
        return sglang.ask(page_hashes)

    def ours(predict: bool, restorable: bool) -> Callable[[list[str]], Awaitable[Any]]:
        lookup = engines[predict].lookup
        return lambda page_hashes: lookup(page_hashes, sglang.layout, restorable=restorable)

    ways: dict[str, Callable[[list[str]], Awaitable[Any]]] = {"SGLang": theirs}
    ways.update((name, ours(*way)) for name, way in _WAYS.items())
    samples: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    expected = None
    order = random.Random(0)
    for _ in range(_ROUNDS):
        order.shuffle(names)
        for name in names:
            for number in range(_BLOCK):
                page_hashes = prompt()
                start = time.perf_counter()
                answer = await ways[name](page_hashes)
                seconds = time.perf_counter() - start
                if number >= _UNCOUNTED:
                    samples[name].append(seconds)
                if name == "SGLang":
                    assert answer.kv_hit_pages == case.stored, answer
                    expected = answer
                elif expected is not None:
                    _check(expected, answer)

    figures = {name: latency(samples[name]) for name in ways}
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{case.model.title}, {case.pages} pages, {case.stored} stored   (load average {load})")
    for name, figure in figures.items():
        ratio = ""
        if name in _WAYS:
            mean = sum(samples["SGLang"]) / sum(samples[name])  # as many of each; SGLang's stalls count here
            ratio = f"   {figures['SGLang'].p50 / figure.p50:5.1f} x faster, {mean:.1f} x in the mean"
        target = f"   target >= {case.targets[name]:g}" if name in case.targets else ""
        print(f"  {name:32}{figure}{ratio}{target}", flush=True)


async def main() -> None:
    _prepare_import()
    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in ("sglang", "torch"))
    print(f"{versions}, aiomooncake {am.__version__}, {_ROUNDS} rounds of {_BLOCK}, {_OTHER_OBJECTS} other objects")
    async with LocalCluster(segment_bytes=512 << 20) as cluster:
        await cluster.put(page_keys(_OTHER_OBJECTS))
        with ExitStack() as stack:
            backends = {model: _SGLang(model, cluster.address) for model in (_V4, _MLA)}
            for backend in backends.values():
                stack.callback(backend.close)
            async with am.connect(cluster.address) as guessing, am.connect(cluster.address, predict=False) as plain:
                for case in _CASES:
                    await _measure(case, backends[case.model], {True: guessing, False: plain}, cluster)


if __name__ == "__main__":
    uvloop.run(main())
