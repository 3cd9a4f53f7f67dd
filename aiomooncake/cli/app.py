"""Commands, their options and their help.

In a docstring, the backspace character before a paragraph has its lines kept as they are; hence no raw docstrings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .bench import app as bench_app

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: the same on a terminal, in a pipe and in a narrow window.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_MASTER_HELP = "HOST:PORT of the master's RPC, or mooncake://HOST:PORT,HOST:PORT?tenant=NAME."
_LAYOUT_HELP = "Layout of the stored pages: a JSON file, or the URL of a running SGLang server."

MasterArgument = Annotated[str, typer.Argument(metavar="MASTER", help=_MASTER_HELP, show_default=False)]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="More of them, one a line; - is stdin.", show_default=False),
]
TokensOption = Annotated[bool, typer.Option("--tokens", help="They are token ids, as 1 2 3, 1,2,3 or [1, 2, 3].")]
ExtraKeyOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The request's extra_key or LoRA adapter; with --tokens.")
]
CacheSaltOption = Annotated[str | None, typer.Option(metavar="TEXT", help="The request's salt; with --tokens.")]
BigramOption = Annotated[bool, typer.Option("--bigram", help="The SGLang server speculates with EAGLE.")]
TimeoutOption = Annotated[
    float, typer.Option(min=0.001, metavar="SECONDS", help="How long connecting, and then asking, may take.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from .._version import __version__

        typer.echo(f"aiomooncake {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Ask a Mooncake master which keys exist.

    \b
      aiomooncake demo                           see it at work; needs no master
      aiomooncake doctor 10.0.0.1:50051          can this machine ask that master?
      aiomooncake lookup 10.0.0.1:50051 KEY ...  which of these keys are stored?
      aiomooncake explain 10.0.0.1:50051 ...     why does this prompt not hit?
      aiomooncake local                          a master to try things on
    """  # noqa: D301


@app.command()
def demo(
    callers: Annotated[int, typer.Option(min=1, max=10_000, help="Tasks that ask at the same time.")] = 1000,
    keys: Annotated[int, typer.Option(min=1, max=256, help="Keys in each question.")] = 1,
) -> None:
    """Start a real master here and let a thousand callers ask it.

    They ask once through aiomooncake and once through Mooncake's own async client; a table compares answers, calls
    that reached the master, throughput and latency. Takes about 10 s and leaves nothing behind. It needs the Mooncake
    library: pip install 'aiomooncake[non-cuda]'.

    \b
      aiomooncake demo
      aiomooncake demo --callers 256 --keys 64

    \b
    Exit status:
      0  every answer was right, from both
      1  some answer was wrong
      2  the command was not understood, or the Mooncake library does not run here
      3  the cluster could not be started
    """  # noqa: D301
    from .demo import run_demo

    run_demo(callers, keys)


@app.command()
def lookup(
    master: MasterArgument,
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY",
            help="Object keys as they stand in Mooncake, or with --layout page hashes; - reads them from stdin.",
            show_default=False,
        ),
    ] = None,
    file: FileOption = None,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Only tell how many keys exist from the first on, without a gap.")
    ] = False,
    layout: Annotated[str | None, typer.Option(metavar="FILE|URL", help=_LAYOUT_HELP, show_default=False)] = None,
    tokens: TokensOption = False,
    extra_key: ExtraKeyOption = None,
    cache_salt: CacheSaltOption = None,
    bigram: BigramOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timeout: TimeoutOption = 5.0,
) -> None:
    """Tell which keys a master has, or how much of a prompt.

    On a terminal this prints a table; into a pipe a line a key, "yes" or "no", a tab, the key. With --prefix or
    --layout a pipe gets a number. Each key that is found gets the master's usual read lease.

    \b
      aiomooncake lookup 10.0.0.1:50051 key-a key-b
      aiomooncake lookup 10.0.0.1:50051 --file keys.txt --json
      grep -o 'key=[^ ]*' log | cut -c5- | aiomooncake lookup 10.0.0.1:50051 -
      pages=$(aiomooncake lookup 10.0.0.1:50051 --prefix -f prompt-keys.txt)
      aiomooncake lookup 10.0.0.1:50051 --layout http://sglang:30000 --tokens -f ids

    A layout file has what SGLang's /get_hicache_l3_cache_layout answers, or the options of one of the library's
    Layout methods: {"sglang": {...}}, {"vllm": {...}} or {"lmcache": {...}}.

    \b
    Exit status:
      0  every key exists, or every page can be restored
      1  at least one does not, or fewer can
      2  the command was not understood
      3  the master could not be asked, or answered an error
    """  # noqa: D301
    if layout is None:
        from .lookup import run_lookup

        if tokens or bigram or extra_key is not None or cache_salt is not None:
            raise typer.BadParameter("--tokens, --extra-key, --cache-salt and --bigram need --layout")
        run_lookup(master, keys or [], file, prefix=prefix, as_json=as_json, timeout=timeout)
    if prefix:
        raise typer.BadParameter("--prefix counts keys and --layout pages: choose one")
    from .keys import gather_keys
    from .pages import run_page_lookup
    from .prompts import Prompt

    prompt = Prompt(
        given=gather_keys(keys or [], file),
        tokens=tokens,
        layout=layout,
        bigram=bigram,
        extra_key=extra_key,
        cache_salt=cache_salt,
    )
    run_page_lookup(master, prompt, as_json=as_json, timeout=timeout)


@app.command()
def explain(
    master: MasterArgument,
    pages: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAGE", help="Page hashes of one prompt; - reads them from stdin.", show_default=False),
    ] = None,
    *,
    layout: Annotated[str, typer.Option(metavar="FILE|URL", help=_LAYOUT_HELP, show_default=False)],
    file: FileOption = None,
    tokens: TokensOption = False,
    extra_key: ExtraKeyOption = None,
    cache_salt: CacheSaltOption = None,
    bigram: BigramOption = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Ask for every page of every pool, not only what a lookup needs.")
    ] = False,
    show_keys: Annotated[
        bool, typer.Option("--keys", help="List every object key too: answer, pool, page, key, by tabs.")
    ] = False,
    timeout: TimeoutOption = 5.0,
) -> None:
    """Show page by page, pool by pool, why a prompt is stored or not.

    For the question "everything was stored, why is the hit rate 0?": a map of the prompt, what each pool allows, and
    the first key that is missing from it. Each key that is found gets the master's usual read lease.

    \b
      aiomooncake explain 10.0.0.1:50051 --layout http://sglang:30000 --tokens -f ids
      aiomooncake explain 10.0.0.1:50051 --layout layout.json --all --keys HASH HASH

    A layout file has what SGLang's /get_hicache_l3_cache_layout answers, or the options of one of the library's
    Layout methods: {"sglang": {...}}, {"vllm": {...}} or {"lmcache": {...}}.

    \b
    Exit status:
      0  every page can be restored
      1  fewer can
      2  the command was not understood
      3  the master could not be asked
    """  # noqa: D301
    from .explain import run_explain
    from .keys import gather_keys
    from .prompts import Prompt

    prompt = Prompt(
        given=gather_keys(pages or [], file),
        tokens=tokens,
        layout=layout,
        bigram=bigram,
        extra_key=extra_key,
        cache_salt=cache_salt,
    )
    run_explain(master, prompt, everything=everything, show_keys=show_keys, timeout=timeout)


@app.command()
def local(
    keys_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Store these keys first, one a line; - is stdin.", show_default=False),
    ] = None,
    segment_size: Annotated[int, typer.Option(min=16, metavar="MIB", help="Memory for values, in MiB.")] = 64,
    lease: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long a hit protects a key from eviction.")
    ] = 5.0,
) -> None:
    """Run a master and a client that holds data, until Ctrl-C.

    The first line printed is the master's address; in a pipe it is the only one. Both listen on loopback only, on
    free ports, and end with this command, however it ends.

    \b
      aiomooncake local --keys-file keys.txt
      aiomooncake local > address & until [ -s address ]; do sleep 0.1; done

    \b
    Exit status:
      0  ended by Ctrl-C or SIGTERM
      1  the master ended by itself
      2  the command was not understood, or the Mooncake library does not run here
      3  the cluster could not be started, or refused the keys
    """  # noqa: D301
    from .local import run_local

    run_local(keys_file, segment_bytes=segment_size << 20, lease=lease)


@app.command()
def doctor(
    master: MasterArgument,
    metrics_port: Annotated[
        int, typer.Option(min=1, max=65535, metavar="PORT", help="The master's --metrics_port: its admin HTTP.")
    ] = 9003,
    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long each check may take.")] = 2.0,
) -> None:
    """Check everything that asking a master depends on.

    One line a check: "ok", "fail" and what to do about it, or "skip" and why. The master is asked a few hundred
    questions about a key that nobody has; nothing is changed.

    \b
      aiomooncake doctor 10.0.0.1:50051
      aiomooncake doctor 10.0.0.1:50051 --metrics-port 9004

    \b
    Exit status:
      0  no check failed
      1  at least one failed
      2  the command was not understood
    """  # noqa: D301
    from .doctor import run_doctor

    run_doctor(master, metrics_port=metrics_port, timeout=timeout)


app.add_typer(bench_app, name="bench")
