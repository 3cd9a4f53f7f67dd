"""python -m tests.chaos [--minutes 10] [--seed N] [--json FILE]

Ask a real master from hundreds of tasks while it is killed, stopped and restarted, and while the network to it cuts,
stalls, splits and garbles. Ends with 1 if anything did not hold: a wrong answer, a question that never ended, an error
that nothing documents, no recovery, or memory, descriptors, threads or tasks that grew.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from pathlib import Path

import uvloop

from .run import run_chaos


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long; default: 10")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="what goes wrong; default: random")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there as well")
    options = parser.parse_args()
    logging.getLogger("aiomooncake").setLevel(logging.ERROR)  # one engine has an outage with every fault
    _say(f"chaos for {options.minutes:g} minutes, --seed {options.seed}")
    report = uvloop.run(run_chaos(60 * options.minutes, options.seed, _say))
    _say(f"\n{report}")
    if options.json is not None:
        options.json.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    return 1 if report.broken() else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
