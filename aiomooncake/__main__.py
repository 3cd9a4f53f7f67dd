"""The command line: `aiomooncake …`, or `python -m aiomooncake …`. It needs the extra `cli`."""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that `sys.argv` names; ends the process with its exit status."""
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"aiomooncake: error: the command line needs {' and '.join(missing)}: pip install 'aiomooncake[cli]'"
            " (the library itself works without)"
        )
    from .cli.app import app

    app(prog_name="aiomooncake")


if __name__ == "__main__":
    main()
