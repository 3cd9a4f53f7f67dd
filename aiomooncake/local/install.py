"""Where Mooncake is installed, how to run it from there, and what to do when it does not run."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError

__all__ = ["Installation", "find_installation", "suggest_cure"]

_INSTALL = "`pip install 'aiomooncake[non-cuda]'` installs one that needs no GPU"


class Installation(NamedTuple):
    """A master, and the Python client that goes with it."""

    master: Path
    """The executable."""
    environment: dict[str, str]
    """What both run with."""
    python_path: list[str]
    """`sys.path` for importing the client."""


def find_installation(master_binary: str | os.PathLike[str] | None) -> Installation:
    """The installed Mooncake, found without importing it; or the one that `master_binary` belongs to.

    A binary in an unpacked wheel (`.../mooncake/mooncake_master` beside `.../*.libs`) runs with the libraries of that
    wheel, and the client is taken from it as well: masters and clients of different versions do not always agree.

    Raises:
        ConfigError: there is none, or it cannot be executed.
    """
    if master_binary is not None:
        master = Path(master_binary).absolute()
        folder = master.parent
        libraries = [str(folder), *sorted(map(str, folder.parent.glob("*.libs")))]
        inherited = os.environ.get("LD_LIBRARY_PATH")
        environment = {"LD_LIBRARY_PATH": ":".join([*libraries, inherited] if inherited else libraries)}
        python_path = [str(folder.parent)] if folder.name == "mooncake" and any(folder.glob("store*.so")) else []
    else:
        spec = importlib.util.find_spec("mooncake")
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(f"no Mooncake is installed in {sys.prefix}; {_INSTALL}")
        master = Path(spec.submodule_search_locations[0]) / "mooncake_master"
        environment, python_path = {}, []
    if not master.is_file():
        raise ConfigError(f"there is no master binary at {master}; {_INSTALL}")
    if not os.access(master, os.X_OK):
        raise ConfigError(f"{master} is not executable; `chmod +x` it")
    return Installation(
        master,
        {"MC_LOG_LEVEL": "ERROR", **os.environ, **environment},
        [*python_path, *sys.path],
    )


def suggest_cure(complaint: str) -> str | None:
    """What to do about a complaint of the loader or the importer; None when it is of another kind."""
    if "libibverbs" in complaint:
        return "libibverbs.so.1 is missing: `apt-get install libibverbs1` (Debian, Ubuntu) or your system's rdma-core"
    missing = re.search(r"(\S+\.so[.\d]*): cannot open shared object file", complaint)
    if missing:
        return f"{missing[1]} is missing: install it, or another build of Mooncake: {_INSTALL}"
    if "No module named 'mooncake" in complaint:
        return f"the data-holding client is not installed: {_INSTALL}; or choose store=False"
    return None
