"""A real etcd, and masters in HA mode."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from anyio.from_thread import start_blocking_portal

from .etcd_server import EtcdServer, etcd_binary
from .masters import HaMasters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(scope="session")
def needs_etcd() -> None:
    """Skip where etcd is not installed."""
    if etcd_binary() is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server (Debian, Ubuntu)")


@pytest.fixture(scope="session")
def etcd(needs_etcd: None) -> Iterator[EtcdServer]:
    """An etcd that is started once. Nobody stops it; each test uses a `cluster_name` of its own."""
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(EtcdServer()) as server:
        yield server


@pytest.fixture
async def own_etcd(anyio_backend: object, needs_etcd: None) -> AsyncIterator[EtcdServer]:
    """An etcd for one test, which may stop, kill and start it."""
    async with EtcdServer() as server:
        yield server


@pytest.fixture
def cluster_name() -> str:
    """A Mooncake cluster that no other test knows."""
    return f"cluster-{uuid.uuid4().hex}"


@pytest.fixture
async def ha_masters(anyio_backend: object, needs_etcd: None) -> AsyncIterator[HaMasters]:
    """Two masters for one test, which may kill, stop and restart them; one of them leads and serves."""
    async with HaMasters() as masters:
        yield masters
