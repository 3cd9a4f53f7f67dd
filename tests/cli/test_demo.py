from __future__ import annotations

import io
import signal

import pytest
from rich.console import Console

from aiomooncake.cli.comparison import Comparison, Measured

from .commands import on_terminal, run, started

QUESTIONS = [["a", "b"], ["c", "d"]]
STORED = {"a", "d"}
RIGHT = [[1, 0], [0, 1]]


def test_ends_with_the_table_and_0_when_all_answers_are_equal() -> None:
    done = run("demo", "--callers", "40", "--keys", "3")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    rows = {line[:18].strip(): line[18:].split() for line in done.stdout.decode().splitlines()[4:]}
    assert rows["right answers"] == ["40/40", "40/40", "equal"]
    ours, theirs, _ = rows["master calls"]
    assert int(ours) <= 4
    assert int(theirs) == 40
    assert {"lookups/s", "p50", "p99", "one caller alone"} <= set(rows)
    assert done.stdout.decode().splitlines()[-1].split()[0] == "p99"


def test_a_terminal_sees_progress_and_then_only_the_table() -> None:
    status, text = on_terminal("demo", "--callers", "10", columns=50)
    assert status == 0
    assert "10 callers ask at once" in text
    assert "\x1b[?25h" in text  # the cursor is back
    table = text[text.rindex("10 callers, 1 key a lookup") :]
    assert "gain" in table.splitlines()[4]


@pytest.mark.parametrize("part", ["mooncake_master", "aiomooncake.cli.official"])
def test_an_interrupt_leaves_nothing(part: str) -> None:
    with started("demo") as command:
        command.wait_for(part)
        assert command.end(signal.SIGINT) == (130, "", "")
        assert command.nothing_is_left()


def measured(answers: list[list[int]]) -> Measured:
    return Measured(answers, calls=1, together=[0.001, 0.002], together_seconds=1.0, alone=[0.0001])


def printed(comparison: Comparison) -> str:
    text = io.StringIO()
    comparison.print(Console(file=text, width=80))
    return text.getvalue()


def test_equal_and_right_answers_are_all_right() -> None:
    comparison = Comparison(QUESTIONS, STORED, measured(RIGHT), measured(RIGHT))
    assert comparison.all_right
    assert printed(comparison).split("right answers")[1].split()[:3] == ["2/2", "2/2", "equal"]


@pytest.mark.parametrize("wrong", [[[1, 0], [0, -900]], [[1, 0], [1, 1]]])
def test_a_wrong_answer_of_either_is_not_all_right(wrong: list[list[int]]) -> None:
    for pair in ((RIGHT, wrong), (wrong, RIGHT)):
        comparison = Comparison(QUESTIONS, STORED, *map(measured, pair))
        assert not comparison.all_right
        assert "1 differ" in printed(comparison)


def test_answers_that_are_equally_wrong_are_not_all_right() -> None:
    wrong = [[0, 0], [0, 1]]
    assert not Comparison(QUESTIONS, STORED, measured(wrong), measured(wrong)).all_right
