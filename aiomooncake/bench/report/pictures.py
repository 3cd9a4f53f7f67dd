"""Charts as files and as part of a page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from .charts import CHARTS, style
from .palette import LIGHT, NAMED, variables
from .series import all_series

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..result import Result
    from .charts import Chart
    from .series import Series

__all__ = ["inline_svg", "write_pictures"]

_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif"
_PNG_DPI = 200


def inline_svg(chart: Chart, series: Sequence[Series]) -> str | None:
    """The chart for a page that defines the colours; None when there is nothing to show."""
    with style(NAMED):
        canvas = chart.draw(series, NAMED)
        if canvas is None:
            return None
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = NAMED.named(buffer.getvalue())
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"', r"\1\2", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"([^>]*?) height="[^"]*"', r"\1\2", svg, count=1)
    # Names have to be unique on the page, and so many digits are not seen.
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{chart.name}-", svg)
    svg = re.sub(r"(\d+\.\d\d)\d+", r"\1", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", rf"font-size: \1px; font-family: {_FONT}".replace("'", ""), svg)
    return re.sub(r">\s+<", "><", svg.replace("<svg", f'<svg role="img" aria-label="{chart.title}"', 1))


def write_pictures(result: Result, folder: Path) -> list[Path]:
    """The main charts: SVG files, which follow the reader's light or dark scheme, and PNG files in light.

    Args:
        result: What to show.
        folder: Where; made if missing.

    Returns:
        The files written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    series = all_series(result)
    colours = f":root{{{variables(dark=False)}}}@media(prefers-color-scheme:dark){{:root{{{variables(dark=True)}}}}}"
    written = []
    for chart in CHARTS:
        svg = inline_svg(chart, series) if chart.for_readme else None
        if svg is None:
            continue
        path = folder / f"{chart.name}.svg"
        path.write_text(re.sub(r"(<svg[^>]*>)", rf"\1<style>{colours}</style>", svg, count=1))
        written.append(path)
        with style(LIGHT):
            canvas = chart.draw(series, LIGHT)
            assert canvas is not None
            path = folder / f"{chart.name}.png"
            canvas.savefig(path, dpi=_PNG_DPI, facecolor=LIGHT.paper)
        written.append(path)
    return written
