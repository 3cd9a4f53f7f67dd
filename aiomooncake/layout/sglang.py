"""SGLang HiCache's layouts, from its configuration (sglang 0.5.23, `srt/mem_cache/storage/mooncake_store/`).

A key is `{key_prefix}_{page_hash}{suffix}`. The suffix names the ranks that hold the object, by one of two schemes:
MHA state differs between TP ranks, MLA state does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..errors import ConfigError
from ..hashing.sglang import SGLangHasher
from .pool import KV_POOL, HitPolicy, Pool, is_count, is_text
from .ranks import select_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .core import Layout

__all__ = ["SGLangPool", "sglang"]

_V4_PREFIXED = (
    "c1", "c1_indexer", "c1_indexer_scale",
    "c2", "c2_indexer", "c2_indexer_scale",
    "c4", "c4_rope", "c4_indexer", "c4_indexer_scale", "c4_state", "c4_indexer_state",
    "c128", "c128_rope", "c128_state",
)  # fmt: skip
# Pools that pack a page into one object, named after the pool, on every model.
_PACKED = frozenset({"indexer", "draft_indexer", *(f"deepseek_v4_{name}" for name in _V4_PREFIXED)})
_FOLLOWS_SWA = frozenset({"swa", "draft_swa", *(name for name in _PACKED if name.endswith("_state"))})


@dataclass(frozen=True)
class SGLangPool:
    """A pool of an SGLang server, where its name alone does not say everything.

    Attributes:
        name: SGLang's name: "kv", "mamba", "swa", "indexer", "draft", "draft_swa", "draft_indexer" or "deepseek_v4_…".
        kind: What kind of host pool it is. "mha": keys and values apart, for every TP rank. "mla": one object, the
            same for all TP ranks. "paged": SGLang's page-packed pools. "mamba". None: as the model or the name
            suggests; a draft model of another kind than its target needs it.
        conv_states: For "mamba": convolution states a page, each an object.
        temporal: For "mamba": whether there is an SSM state too (a model with convolutions only has none).
        hit_policy: None: the policy that SGLang gives a pool of this name.
        trailing_pages: The window of `HitPolicy.TRAILING_PAGES`.
    """

    name: str
    kind: Literal["mha", "mla", "paged", "mamba"] | None = None
    conv_states: int = 1
    temporal: bool = True
    hit_policy: HitPolicy | None = None
    trailing_pages: int | None = None


def sglang(  # noqa: D417 - callers do not see the class
    layout: type[Layout],
    *,
    model_name: str | None = None,
    extra_backend_tag: object = None,
    is_mla_model: bool = False,
    pools: Sequence[str | SGLangPool] = (KV_POOL,),
    swa_trailing_pages: int | None = None,
    page_size: int | None = None,
    tp_size: int = 1,
    tp_rank: int | None = None,
    pp_size: int = 1,
    pp_rank: int | None = None,
    attn_cp_size: int = 1,
    attn_cp_rank: int | None = None,
    dcp_size: int = 1,
    dcp_rank: int | None = None,
    should_split_heads: bool = False,
    tp_lcm_size: int | None = None,
    direct_linker: bool = False,
    rank_replicated: bool | None = None,
    bigram: bool = False,
) -> Layout:
    """The layout of an SGLang HiCache server, from its configuration.

    Prefer `Layout.from_sglang` where the server answers: it describes itself. This is for the servers that do not,
    since a single scheduler cannot speak for other TP ranks, and for asking about one rank only.

    A rank that is None stands for all ranks of its kind: a page is then present when every rank has its objects, so
    that one lookup gives the answer for which SGLang's ranks need an all-reduce.

    Checked against sglang 0.5.23.

    Args:
        model_name: The served model's name or path, as SGLang was given it; "/" becomes "-" in keys.
        extra_backend_tag: SGLang's `extra_backend_tag`; anything but None counts, also "" and 0.
        is_mla_model: Whether the KV cache is MLA (DeepSeek, Kimi, GLM-5): the same on all TP ranks.
        pools: The pools in query order, by name or as `SGLangPool`. Without "kv" the anchor is logical.
        swa_trailing_pages: The sliding window in pages, for "swa" and the pools that follow it.
        page_size: Tokens a page; with DCP the logical page size, which the keys contain.
        tp_size: Attention TP ranks.
        tp_rank: One of them, or None.
        pp_size: Pipeline stages.
        pp_rank: One of them, or None.
        attn_cp_size: Context-parallel ranks.
        attn_cp_rank: One of them, or None.
        dcp_size: Decode-context-parallel ranks.
        dcp_rank: One of them, or None.
        should_split_heads: Whether pages are stored by head groups, so that servers of different `tp_size` share them.
        tp_lcm_size: With `should_split_heads`: the least common multiple of the TP sizes that share pages.
        direct_linker: Whether the Mooncake direct linker stores the pages: one object a pool and page.
        rank_replicated: With `direct_linker`: whether all TP ranks hold the same. None: `is_mla_model`.
        bigram: Whether the server speculates with EAGLE; see `sglang_page_hashes`.

    Raises:
        ConfigError: A value is not usable, or SGLang has no such pool on such a model.
    """
    pps = select_ranks("pp_rank", pp_rank, "pp_size", pp_size)
    tps = select_ranks("tp_rank", tp_rank, "tp_size", tp_size)
    cps = select_ranks("attn_cp_rank", attn_cp_rank, "attn_cp_size", attn_cp_size)
    dcps = select_ranks("dcp_rank", dcp_rank, "dcp_size", dcp_size)
    if model_name is not None and not is_text(model_name):
        raise ConfigError(f"model_name must be a string or None, not {model_name!r}")
    if page_size is None and dcp_size > 1:
        raise ConfigError("SGLang's keys contain the logical page size when dcp_size > 1: give it as page_size")

    if direct_linker:
        replicated = is_mla_model if rank_replicated is None else rank_replicated
        tag_tps = [""] if replicated else [f"tp{tp}_" for tp in tps]
        tags = _Tags.same([f"{tp}cp{cp}_pp{pp}" for pp in pps for tp in tag_tps for cp in cps])
    else:
        stages = [(f"_{pp}" if pp_size > 1 else "") for pp in pps]
        mla = [stage.removeprefix("_") for stage in stages]
        if dcp_size > 1:
            mla = [f"dcp{dcp}_cp{cp}{stage}" for stage in stages for dcp in dcps for cp in cps]
        if should_split_heads:
            per_rank = _split_factor(tp_lcm_size, tp_size)
            heads = [
                [f"{head}{stage}" for head in range(tp * per_rank, (tp + 1) * per_rank)]
                for stage in stages
                for tp in tps
            ]
            # SGLang prints the whole list where it expects one tag; those are the keys that it writes.
            tags = _Tags(kv=[tag for group in heads for tag in group], mha=[str(group) for group in heads], mla=mla)
        else:
            mha = [f"{tp}{stage}" for stage in stages for tp in tps]
            tags = _Tags(kv=mha, mha=mha, mla=mla)

    parts = [] if extra_backend_tag is None else [str(extra_backend_tag)]
    if model_name:
        parts.append(model_name.replace("/", "-"))
    if dcp_size > 1:
        parts.append(f"tp{tp_size}_dcp{dcp_size}_page{page_size}_pp{pp_size}_cp{attn_cp_size}")
    return layout(
        pools=tuple(
            _pool(
                SGLangPool(pool) if isinstance(pool, str) else pool,
                tags,
                is_mla_model,
                direct_linker,
                swa_trailing_pages,
            )
            for pool in pools
        ),
        key_prefix="_".join(parts) if parts else None,
        page_size=page_size,
        hasher=SGLangHasher(bigram),
    )


@dataclass(frozen=True)
class _Tags:
    """How a suffix names the ranks: for KV that is MHA, for other MHA state, and for MLA state."""

    kv: list[str]
    mha: list[str]
    mla: list[str]

    @classmethod
    def same(cls, tags: list[str]) -> _Tags:
        return cls(tags, tags, tags)

    def suffixes(self, scheme: str, parts: Iterable[str]) -> tuple[str, ...]:
        tags: list[str] = getattr(self, scheme)
        parts = tuple(parts)
        return tuple(f"_{tag}_{part}" for tag in tags for part in parts)


def _split_factor(tp_lcm_size: int | None, tp_size: int) -> int:
    if not is_count(tp_lcm_size) or not isinstance(tp_lcm_size, int) or tp_lcm_size % tp_size:
        raise ConfigError(
            f"should_split_heads needs tp_lcm_size, a multiple of tp_size ({tp_size}); {tp_lcm_size!r} is none"
        )
    return tp_lcm_size // tp_size


def _pool(pool: SGLangPool, tags: _Tags, is_mla_model: bool, direct_linker: bool, swa_window: int | None) -> Pool:
    if not isinstance(pool, SGLangPool):
        raise ConfigError(f"pools must hold names or SGLangPool, not {pool!r}")
    if direct_linker:
        suffixes = tags.suffixes("mla", ["k" if pool.name == KV_POOL else pool.name])
    else:
        suffixes = tags.suffixes(*_components(pool, is_mla_model))
    return Pool(pool.name, suffixes, *_hit_policy(pool, swa_window))


def _components(pool: SGLangPool, is_mla_model: bool) -> tuple[str, list[str]]:
    """By which scheme a pool's objects name their ranks, and the names of the objects of one rank's page."""
    name = pool.name
    kind = pool.kind or ("mla" if is_mla_model else "mha")
    if name == KV_POOL:
        return ("mla", ["k"]) if is_mla_model else ("kv", ["k", "v"])
    if name in _PACKED:
        return "mla", [name]
    if name == "mamba":
        return "mha", ["temporal"] * pool.temporal + [f"conv_{i}" for i in range(pool.conv_states)]
    if name == "draft":
        return ("mla", ["draft_k"]) if kind == "mla" else ("mha", ["draft_k", "draft_v"])
    if name == "swa" and is_mla_model:
        return "mla", [name]
    if name in ("swa", "draft_swa") and kind == "mha":
        return "mha", [f"{name}_k", f"{name}_v"]
    if name == "draft_swa" and kind in ("mla", "paged"):
        return "mla", [name]
    model = "an MLA" if is_mla_model else "an MHA"
    raise ConfigError(
        f"SGLang stores no pool {name!r} of kind {kind!r} on {model} model; describe a pool of your own by a Pool"
    )


def _hit_policy(pool: SGLangPool, swa_window: int | None) -> tuple[HitPolicy, int | None]:
    if pool.hit_policy is not None or pool.trailing_pages is not None:
        return pool.hit_policy or HitPolicy.TRAILING_PAGES, pool.trailing_pages
    if pool.name == "mamba":
        return HitPolicy.TRAILING_PAGES, 1
    if pool.name not in _FOLLOWS_SWA:
        return HitPolicy.ALL_PAGES, None
    if swa_window is None:
        raise ConfigError(
            f"pool {pool.name!r} is needed for the sliding window only: give its pages as swa_trailing_pages, "
            "or a hit_policy of its own as SGLangPool"
        )
    return HitPolicy.TRAILING_PAGES, swa_window
