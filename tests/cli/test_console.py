from __future__ import annotations

import pytest

from aiomooncake.cli.console import format_duration, printable


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 us"),
        (24.34e-6, "24.3 us"),
        (999.4e-6, "999 us"),
        (0.00542, "5.42 ms"),
        (0.3126, "313 ms"),
        (1.2, "1.20 s"),
        (90.0, "90.0 s"),
    ],
)
def test_a_duration_has_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"page_0-k", "page_0-k"),
        ("\N{SNOWMAN}".encode(), "\N{SNOWMAN}"),
        (b"\xff\xfe", r"\xff\xfe"),
        (b"\x1b[31mred\x07", r"\x1b[31mred\x07"),
        (b"two\nlines", r"two\nlines"),
    ],
)
def test_what_would_do_something_to_a_terminal_is_escaped(key: bytes, text: str) -> None:
    assert printable(key) == text


def test_line_ends_can_be_kept() -> None:
    assert printable("two\nlines\x07", keep="\n") == "two\nlines\\x07"
