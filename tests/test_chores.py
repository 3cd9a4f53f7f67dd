from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiomooncake.chores import Chores

if TYPE_CHECKING:
    from collections.abc import Iterator


def chore(done: list[str], name: str, steps: int) -> Iterator[None]:
    for step in range(steps):
        done.append(f"{name}{step}")
        yield


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_turn_of_the_loop_does_one_step_in_the_order_in_which_chores_came() -> None:
    async def main() -> None:
        done: list[str] = []
        chores = Chores(asyncio.get_running_loop())
        chores.add(chore(done, "a", 2))
        chores.add(chore(done, "b", 1))
        assert not done
        seen = []
        for _ in range(4):
            await turns(1)
            seen.append(list(done))
        assert seen[:2] == [["a0"], ["a0", "a1"]]
        await turns(5)
        assert done == ["a0", "a1", "b0"]
        chores.add(chore(done, "c", 1))  # after a rest
        await turns(2)
        assert done[-1] == "c0"

    asyncio.run(main())


def test_when_many_wait_a_turn_does_more_so_that_few_ever_do() -> None:
    async def main() -> None:
        done: list[str] = []
        chores = Chores(asyncio.get_running_loop())
        for number in range(1000):
            chores.add(chore(done, f"{number}:", 3))
        await turns(1)
        assert len(done) >= 3 * 990
        await turns(40)
        assert len(done) == 3000

    asyncio.run(main())


def test_one_that_raises_is_told_to_the_loop_and_the_others_go_on() -> None:
    def broken() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    async def main() -> None:
        told: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        done: list[str] = []
        chores = Chores(loop)
        chores.add(broken())
        chores.add(chore(done, "a", 2))
        await turns(8)
        assert done == ["a0", "a1"]
        assert [type(error) for error in told] == [ZeroDivisionError]

    asyncio.run(main())
