"""EtcdLeader beside real masters that lose their leader. The tests share a cluster, since starting one takes 6 s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .following import following
from .masters import HaMasters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def masters(anyio_backend: object, needs_etcd: None) -> AsyncIterator[HaMasters]:
    async with HaMasters() as masters:
        yield masters


async def test_the_leader_is_one_of_the_masters_and_serves(masters: HaMasters) -> None:
    leader = await masters.leader()
    assert leader in masters.addresses
    assert leader == await masters.wait_serving()
    await masters.put(["a", "b"])


async def test_a_killed_leader_is_followed_by_the_other_master(masters: HaMasters) -> None:
    async with following([masters.etcd_address], masters.cluster) as told:
        old = await masters.kill_leader()
        (new,) = set(masters.addresses) - {old}
        await told.wait_last(new)
    assert [leader for leader in told.leaders if leader is not None] == [old, new]
    assert await masters.wait_serving() == new
    await masters.put(["a", "b"])
    masters.restart(old)


async def test_a_terminated_leader_is_followed_by_the_one_that_was_restarted(masters: HaMasters) -> None:
    async with following([masters.etcd_address], masters.cluster) as told:
        old = await masters.terminate_leader()
        new = await masters.wait_leader(other_than=old)
        await told.wait_last(new)
    assert [leader for leader in told.leaders if leader is not None] == [old, new]
