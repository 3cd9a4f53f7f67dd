"""LMCache's layouts (lmcache 0.5.6: `utils.py`, `v1/distributed/api.py` and its native L2 adapter).

Keys are `{model}@{world_size}@{worker_id}@{chunk_hash}@{dtype}[@{layer}][@{tag}%{value}…]`, and in multi-process mode
`{model}@{kv_rank:08x}@{group:x}@{chunk_hash}[@{salt}]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..hashing.lmcache import LMCacheHasher
from .groups import group_names, group_pool
from .pool import KV_POOL, Pool, is_count, is_text
from .ranks import select_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .core import Layout

__all__ = ["lmcache"]

# LMCache's names by torch's, and by themselves.
_DTYPES = {"float16": "half", "float32": "float", "float64": "double"} | {
    f"float8_{form}": f"fp8_{form}" for form in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
}
_DTYPES |= {name: name for name in ("bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool", *_DTYPES.values())}

_SALT_LIMIT = 128  # ObjectKey's, in characters
_WORLD_LIMIT = 255  # a kv_rank has eight bits for it


def lmcache(  # noqa: D417 - callers do not see the class
    layout: type[Layout],
    model_name: str,
    *,
    multiprocess: bool = False,
    world_size: int = 1,
    worker_id: int | None = None,
    dtype: object = None,
    num_layers: int | None = None,
    tags: Mapping[str, object] | None = None,
    save_only_first_rank: bool = False,
    object_groups: Sequence[int | None] | None = None,
    cache_salt: str = "",
    chunk_size: int = 256,
    algorithm: str | None = None,
    seed: str | None = None,
    none_hash: int | None = None,
) -> Layout:
    """The layout of an LMCache deployment that keeps its chunks in Mooncake; a page is a chunk.

    Checked against lmcache 0.5.6, whose own key and hash code made the test vectors.

    Args:
        model_name: The model's name, as LMCache was given it.
        multiprocess: Whether LMCache runs as a server of its own (multi-process mode), whose keys differ.
        world_size: Workers: TP times PP; for MLA in multi-process mode, pipeline stages times DCP.
        worker_id: One of them, or None for all: a chunk is then present when every worker has stored its part.
        dtype: The KV cache's data type, as torch or LMCache names it ("bfloat16", "half", torch.float8_e4m3fn).
            Needed unless `multiprocess`.
        num_layers: With layerwise storage: the model's layers, each an object. None: not layerwise.
        tags: The request's tags, without their "lmcache.tag." and in the request's order. Not with `multiprocess`.
        save_only_first_rank: Whether only the first worker stores, as LMCache does for MLA unless configured
            otherwise; keys then say a world size of 1. Not with `multiprocess`.
        object_groups: With `multiprocess`: for each object group in order, its sliding window in chunks, or None when
            it needs all chunks. None: one group that needs all. The first group that needs all is the pool "kv"; the
            others are named "group0", "group1" and so on, by their number.
        cache_salt: With `multiprocess`: the user's salt; "" without one.
        chunk_size: Tokens a chunk. Needed only to look up token ids, like the rest.
        algorithm: See `lmcache_chunk_hashes`. None: LMCache's default, "builtin", or "blake3" with `multiprocess`.
        seed: See `lmcache_chunk_hashes`.
        none_hash: See `lmcache_chunk_hashes`.

    Raises:
        ConfigError: A value is not usable, or belongs to the other mode.
    """
    if not is_text(model_name) or not model_name:
        raise ConfigError(f"model_name must be a string that is not empty, not {model_name!r}")
    workers = select_ranks("worker_id", worker_id, "world_size", world_size)
    if multiprocess:
        _refuse("multiprocess=True", dtype=dtype, num_layers=num_layers, tags=tags)
        if save_only_first_rank:
            raise ConfigError("save_only_first_rank is not an option of multi-process mode: give the world_size it has")
        windows = (None,) if object_groups is None else tuple(object_groups)
        pools = _multiprocess_pools(model_name, world_size, workers, windows, cache_salt)
    else:
        _refuse("multiprocess=False", object_groups=object_groups, cache_salt=cache_salt or None)
        if save_only_first_rank:
            world_size, workers = 1, range(1)
        tails = _tails(dtype, num_layers, tags)
        heads = [f"{model_name}@{world_size}@{worker}@" for worker in workers]
        prefixes = tuple(head for head in heads for _ in tails)
        pools = (Pool(KV_POOL, tails * len(heads), prefixes=prefixes),)
    default = "blake3" if multiprocess else "builtin"
    return layout(
        pools=pools,
        page_size=chunk_size,
        hasher=LMCacheHasher(default if algorithm is None else algorithm, multiprocess, seed, none_hash),
    )


def _refuse(mode: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name}={value!r} has no meaning with {mode}: leave it out")


def _tails(dtype: object, num_layers: int | None, tags: Mapping[str, object] | None) -> tuple[str, ...]:
    name = _DTYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        known = ", ".join(sorted(set(_DTYPES.values())))
        raise ConfigError(f"LMCache's keys contain the KV cache's dtype, one of {known}; {dtype!r} is none")
    labels = "".join(f"@{tag}%{value}" for tag, value in (tags or {}).items())
    if num_layers is None:
        return (f"@{name}{labels}",)
    if not is_count(num_layers):
        raise ConfigError(f"num_layers must be an integer of at least 1, or None, not {num_layers!r}")
    return tuple(f"@{name}@{layer}{labels}" for layer in range(num_layers))


def _multiprocess_pools(
    model_name: str, world_size: int, workers: range, windows: tuple[int | None, ...], cache_salt: str
) -> tuple[Pool, ...]:
    if "@" in model_name:
        raise ConfigError(f"LMCache's multi-process mode takes no model name with '@' in it, like {model_name!r}")
    if len(cache_salt) > _SALT_LIMIT or set(cache_salt) & set("@/\\\0"):
        raise ConfigError(
            f"an LMCache salt has at most {_SALT_LIMIT} characters, none of them '@', '/', '\\' or NUL; "
            f"{cache_salt!r} has"
        )
    if world_size > _WORLD_LIMIT:
        raise ConfigError(f"LMCache's multi-process mode has at most {_WORLD_LIMIT} workers, not {world_size}")
    # LMCache's lookups take every worker to be on one node.
    ranks = [world_size << 24 | worker << 16 | world_size << 8 | worker for worker in workers]
    suffix = f"@{cache_salt}" if cache_salt else ""
    return tuple(
        group_pool(name, window, tuple(f"{model_name}@{rank:08x}@{number:x}@" for rank in ranks), suffix)
        for number, (name, window) in enumerate(zip(group_names(windows), windows, strict=True))
    )
