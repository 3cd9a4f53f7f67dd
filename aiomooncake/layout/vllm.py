"""vLLM's layouts (vLLM main, September 2026, `distributed/kv_transfer/kv_connector/v1/mooncake/store/`).

A key is `[{cache_prefix}@]{model}{namespace}@tp_rank:{t}@pcp{p}@dcp{d}@pp_rank:{s}@group:{g}@{block_hash}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..errors import ConfigError
from ..hashing.vllm import VLLMHasher
from .groups import group_names, group_pool
from .pool import is_count, is_text
from .ranks import select_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .core import Layout

__all__ = ["VLLMGroup", "vllm"]


@dataclass(frozen=True)
class VLLMGroup:
    """A KV cache group of a vLLM model: layers that share blocks. Most models have one.

    Attributes:
        kind: "attention", "mla" (the same on all TP ranks) or "mamba".
        num_kv_heads: For "attention": the model's KV heads in all. TP ranks beyond that number hold copies, which
            vLLM stores once. None: at least one head for every rank.
        trailing_blocks: How many blocks before the end of a prefix its reuse needs: a sliding window in blocks, and 1
            for "mamba". None: all blocks (1 for "mamba").
    """

    kind: Literal["attention", "mla", "mamba"] = "attention"
    num_kv_heads: int | None = None
    trailing_blocks: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("attention", "mla", "mamba"):
            raise ConfigError(f"a vLLM group's kind is 'attention', 'mla' or 'mamba', not {self.kind!r}")
        for name, value in (("num_kv_heads", self.num_kv_heads), ("trailing_blocks", self.trailing_blocks)):
            if value is not None and not is_count(value):
                raise ConfigError(f"{name} must be an integer of at least 1, or None, not {value!r}")

    def shards(self, tp_size: int) -> int:
        """How many TP ranks store something of their own, when there is no DCP."""
        if self.kind == "mla":
            return 1
        if self.kind == "mamba" or self.num_kv_heads is None:
            return tp_size
        return tp_size // max(1, tp_size // self.num_kv_heads)

    @property
    def window(self) -> int | None:
        """`trailing_blocks`, with the default of its kind."""
        return 1 if self.trailing_blocks is None and self.kind == "mamba" else self.trailing_blocks


def vllm(  # noqa: D417 - callers do not see the class
    layout: type[Layout],
    model: str,
    *,
    groups: Sequence[VLLMGroup] = (VLLMGroup(),),
    tp_size: int = 1,
    pp_size: int = 1,
    pcp_size: int = 1,
    dcp_size: int = 1,
    cache_prefix: str = "",
    namespace: str = "",
    block_size: int | None = None,
    hash_block_size: int | None = None,
    seed: str | None = None,
    algorithm: str = "sha256",
) -> Layout:
    """The layout of vLLM's Mooncake store connector, all ranks at once, as its own lookup asks.

    The first group that needs all blocks is the pool "kv"; the others are named "group0", "group1" and so on, by their
    number in vLLM. A page is a block; groups whose block size differs from the others' are not covered.

    Checked against vLLM main of September 2026. The vLLM of Ascend spells its keys otherwise: build those from `Pool`s
    with `prefixes`.

    Args:
        model: The model's name or path, as vLLM was given it; keys have its last part.
        groups: The model's KV cache groups, in vLLM's order.
        tp_size: Tensor-parallel ranks.
        pp_size: Pipeline stages.
        pcp_size: Prefill-context-parallel ranks.
        dcp_size: Decode-context-parallel ranks, a divisor of `tp_size`.
        cache_prefix: The connector's `cache_prefix`; "" when not configured.
        namespace: What the connector puts behind the model's name; "" unless its version does.
        block_size: Tokens a stored block. Needed only to look up token ids, like the rest.
        hash_block_size: See `vllm_block_hashes`.
        seed: See `vllm_block_hashes`. None: hashes come from the engine; token ids are refused.
        algorithm: See `vllm_block_hashes`.

    Raises:
        ConfigError: A value is not usable.
    """
    tps = select_ranks("tp_rank", None, "tp_size", tp_size)
    pps = select_ranks("pp_rank", None, "pp_size", pp_size)
    pcps = select_ranks("pcp_rank", None, "pcp_size", pcp_size)
    if not is_count(dcp_size) or tp_size % dcp_size:
        raise ConfigError(f"dcp_size must divide tp_size ({tp_size}); {dcp_size!r} does not")
    if not is_text(model) or not model.strip("/"):
        raise ConfigError(f"model must be the name or path that vLLM was given, not {model!r}")
    head = f"{cache_prefix}@" if cache_prefix else ""
    head += model.rstrip("/").rsplit("/", 1)[-1] + namespace

    def prefixes(number: int, group: VLLMGroup) -> tuple[str, ...]:
        # DCP divides TP further, and then every rank has something of its own.
        shards = tps if dcp_size > 1 else range(group.shards(tp_size))
        return tuple(
            f"{head}@tp_rank:{tp}@pcp{pcp}@dcp{tp % dcp_size}@pp_rank:{pp}@group:{number}@"
            for pcp in pcps
            for tp in shards
            for pp in pps
        )

    for group in groups:
        if not isinstance(group, VLLMGroup):
            raise ConfigError(f"groups must hold VLLMGroup, not {group!r}")
    names = group_names([group.window for group in groups])
    return layout(
        pools=tuple(
            group_pool(name, group.window, prefixes(number, group))
            for number, (name, group) in enumerate(zip(names, groups, strict=True))
        ),
        page_size=block_size,
        hasher=VLLMHasher(seed, algorithm, hash_block_size),
    )
