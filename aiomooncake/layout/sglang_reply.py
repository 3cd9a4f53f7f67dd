"""SGLang's description of its own layout (sglang 0.5.23, `srt/mem_cache/hicache_storage.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..hashing.sglang import SGLangHasher
from .pool import Pool, is_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .core import Layout

__all__ = ["from_sglang"]


def from_sglang(  # noqa: D417 - callers do not see the class
    layout: type[Layout],
    reply: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None,
    *,
    bigram: bool = False,
) -> Layout:
    """The layout that a running SGLang server describes.

    Checked against sglang 0.5.23.

    Args:
        reply: The JSON of `GET /get_hicache_l3_cache_layout`, decoded; or only its `hicache_object_layout`; or a list
            of such replies, of all schedulers, to be merged as SGLang merges them: replicas must agree, and every
            pipeline stage must be there. A single reply of one stage is taken as it is, and asks for that stage.
        bigram: Whether the server speculates with EAGLE, which the reply does not say; see `sglang_page_hashes`.

    Returns:
        A layout whose pools hold the objects of every pipeline stage described.

    Raises:
        ConfigError: The server cannot be looked up from outside (the message has its reason), stores somewhere else
            than in Mooncake, sent something that is no description, or the replies do not make one.
    """
    if isinstance(reply, Mapping):
        description, page_size = _unwrap(reply)
    elif isinstance(reply, list | tuple):
        description, page_size = _merge(reply)
    else:
        raise ConfigError(
            f"the reply of SGLang's layout endpoint is a JSON object, not {reply!r}; a server that sends null is older "
            "than the endpoint"
        )
    return layout(
        pools=_described_pools(description),
        key_prefix=description.get("key_prefix"),
        page_size=page_size,
        hasher=SGLangHasher(bigram),
    )


def _unwrap(reply: Mapping[str, Any]) -> tuple[Mapping[str, Any], int | None]:
    """The description in a reply, and the page size; refuses what cannot be looked up."""
    if "hicache_object_layout" not in reply and "pools" in reply:
        return reply, None
    if not reply.get("enabled"):
        raise ConfigError(f"SGLang refuses lookups from outside: {reply.get('reason') or 'it gives no reason'}")
    if reply.get("backend") != "mooncake":
        raise ConfigError(f"SGLang stores its pages in {reply.get('backend')!r}, not in Mooncake")
    description = reply.get("hicache_object_layout")
    if not isinstance(description, Mapping):
        raise ConfigError(f"SGLang's reply has no object layout: hicache_object_layout is {description!r}")
    return description, reply.get("page_size")


def _merge(replies: Sequence[Mapping[str, Any] | None]) -> tuple[Mapping[str, Any], int | None]:
    """One description of all stages, pools in stage order."""
    stages: dict[int | None, tuple[Mapping[str, Any], int | None]] = {}
    for reply in replies:
        if not isinstance(reply, Mapping):
            raise ConfigError(f"every SGLang scheduler must describe its layout; one sent {reply!r}")
        stage = _unwrap(reply)
        if stages.setdefault(stage[0].get("pp_rank"), stage) != stage:
            raise ConfigError(
                f"SGLang's schedulers of pipeline stage {stage[0].get('pp_rank')} describe different layouts"
            )
    if not stages:
        raise ConfigError("no replies of SGLang schedulers to make a layout of")
    if len({_stage_independent(stage) for stage in stages.values()}) > 1:
        raise ConfigError("SGLang's pipeline stages describe different layouts: are they of one server?")
    if set(stages) == {None}:  # merged already
        return stages[None]
    description, page_size = next(iter(stages.values()))
    pp_size = description.get("pp_size", 1)
    if not is_count(pp_size) or set(stages) != set(range(pp_size)):
        raise ConfigError(f"incomplete: SGLang has {pp_size!r} pipeline stages, and the replies are of {list(stages)}")
    pools = [pool for rank in range(pp_size) for pool in stages[rank][0].get("pools", ())]
    return {**description, "pools": pools}, page_size


def _stage_independent(stage: tuple[Mapping[str, Any], int | None]) -> str:
    description, page_size = stage
    rest = {key: value for key, value in description.items() if key not in ("pools", "pp_rank")}
    return repr((page_size, sorted(rest.items())))


def _described_pools(description: Mapping[str, Any]) -> tuple[Pool, ...]:
    """The described pools; those of several pipeline stages with the same name become one with all their objects."""
    entries = description.get("pools")
    if not isinstance(entries, list | tuple):
        raise ConfigError(f"an SGLang object layout has a list of pools, not {entries!r}")
    by_name: dict[str, Pool] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or not {"pool", "suffixes", "hit_policy"} <= set(entry):
            raise ConfigError(
                f"an SGLang pool has the fields pool, suffixes and hit_policy; this one has not: {entry!r}"
            )
        pool = Pool(entry["pool"], entry["suffixes"], entry["hit_policy"], entry.get("trailing_pages"))
        earlier = by_name.get(pool.name)
        if earlier is not None:
            if (earlier.hit_policy, earlier.trailing_pages) != (pool.hit_policy, pool.trailing_pages):
                raise ConfigError(f"SGLang's pipeline stages describe different hit policies for pool {pool.name!r}")
            suffixes = tuple(dict.fromkeys(earlier.suffixes + pool.suffixes))
            pool = Pool(pool.name, suffixes, pool.hit_policy, pool.trailing_pages)
        by_name[pool.name] = pool
    return tuple(by_name.values())
