"""The command line: parse, call the public API, print.

`app` declares the commands; each does its work in a module of its own, imported when it is run, so that `--help`
stays quick. stdout has the result and nothing else; progress and errors go to stderr.
"""

from __future__ import annotations

__all__: list[str] = []
