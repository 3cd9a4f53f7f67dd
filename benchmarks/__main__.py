"""`make bench`: the quick benchmark; the result and the report go to build/bench.

python -m benchmarks [--full]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path("build/bench")


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    report = FOLDER / "report.html"
    bench = [sys.executable, "-m", "aiomooncake", "bench"]
    measured = subprocess.run([*bench, "--report", report, *sys.argv[1:]], check=False)
    if measured.returncode:
        return measured.returncode
    print(f"open {report.resolve().as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
