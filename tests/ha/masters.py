"""Several real masters in HA mode that agree in a real etcd on who leads."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import anyio

from aiomooncake.local.data_client import DataClient
from aiomooncake.local.install import find_installation
from aiomooncake.local.log import ProcessLog
from aiomooncake.local.ports import ReservedPort
from aiomooncake.local.probe import is_serving
from aiomooncake.local.process import GuardedProcess
from aiomooncake.target import Address
from aiomooncake.transport.leader import EtcdLeader

from .etcd_server import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from aiomooncake.local.install import Installation
    from aiomooncake.wire.messages import Key

__all__ = ["HaMasters"]

# A new leader is named up to 6 s after the death of the old one, and serves 5 s later.
_SERVING_LIMIT = 30.0
_POLL_INTERVAL = 0.005
_PROBE_LIMIT = 1.0
_SEGMENT_BYTES = 16 << 20


class HaMasters:
    """An etcd and `count` masters, in processes of their own that are gone when it is left.

        async with HaMasters() as masters:
            await masters.put(["a"])
            old = await masters.kill_leader()
            new = await masters.wait_serving(other_than=old)  # about 10 s later, and without any key

    Entering takes about 6 s: it returns when one of the masters leads and serves.

    Attributes:
        etcd: the etcd, which may be stopped, killed and started as well.
        cluster: what the masters call their cluster.
        addresses: the RPC of each master; a standby does not listen there.
    """

    def __init__(self, count: int = 2, *, cluster: str = "test_cluster", lease_ttl: float = 0.1) -> None:
        """With `lease_ttl` seconds for which a hit protects a key."""
        self.etcd = EtcdServer()
        self.cluster = cluster
        self._installation = find_installation(None)
        self._log = ProcessLog()
        options = [
            "--enable_ha=true",
            "--ha_backend_type=etcd",
            f"--ha_backend_connstring={self.etcd.address}",
            f"--cluster_id={cluster}",
            f"--default_kv_lease_ttl={round(lease_ttl * 1000)}",
        ]
        masters = [_Master(self._installation, options, self._log) for _ in range(count)]
        self._masters = {master.address: master for master in masters}
        self.addresses: Sequence[Address] = tuple(self._masters)
        self._leader = EtcdLeader([self.etcd.address], cluster)
        self._data_client: tuple[Address, DataClient] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.etcd.start()
            for master in self._masters.values():
                master.start()
            await self.wait_serving()
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    @property
    def etcd_address(self) -> Address:
        """Where etcd takes requests."""
        return self.etcd.address

    @property
    def target(self) -> str:
        """What `aiomooncake.connect` takes to follow the leader."""
        return f"etcd://{self.etcd.address}/{self.cluster}"

    async def leader(self) -> Address | None:
        """The master that etcd names now; None: none."""
        return await self._leader.read()

    async def wait_leader(self, *, other_than: Address | None = None) -> Address:
        """Wait until etcd names a master, another one than `other_than`."""
        with anyio.fail_after(_SERVING_LIMIT):
            while (leader := await self.leader()) in (None, other_than):
                await anyio.sleep(_POLL_INTERVAL)
        assert leader is not None
        return leader

    async def wait_serving(self, *, other_than: Address | None = None) -> Address:
        """Wait until the master that etcd names serves, and is another one than `other_than`."""
        leader = await self.wait_leader(other_than=other_than)
        with anyio.fail_after(_SERVING_LIMIT):
            while not await _serves(leader):
                await anyio.sleep(_POLL_INTERVAL)
        return leader

    async def kill_leader(self) -> Address:
        """End the leader by SIGKILL and wait for that; its address. etcd goes on naming it for about 5 s."""
        leader = await self._leader_to_lose()
        self._masters[leader].reap()
        return leader

    async def terminate_leader(self) -> Address:
        """Ask the leader to end (SIGTERM) and wait for that; its address."""
        leader = await self._leader_to_lose()
        await self._masters[leader].terminate()
        return leader

    async def stop_leader(self) -> Address:
        """Freeze the leader (SIGSTOP); its address, for `go_on`."""
        leader = await self._leader_to_lose()
        self._masters[leader].send_signal(signal.SIGSTOP)
        return leader

    def go_on(self, address: Address) -> None:
        """Let the master that was stopped go on (SIGCONT)."""
        self._masters[address].send_signal(signal.SIGCONT)

    def restart(self, address: Address) -> None:
        """Start the master on its ports again, after killing the one that runs. It becomes a standby, or leads."""
        self._masters[address].start()

    async def put(self, keys: Sequence[Key], value: bytes = b"x") -> None:
        """Store `value` under each key on the master that leads and serves. With another master, all keys are gone."""
        leader = await self.wait_serving()
        if self._data_client is None or self._data_client[0] != leader:
            self._forget_data()
            client = DataClient(self._installation, self._log)
            self._data_client = leader, client
            await client.setup(str(leader), _SEGMENT_BYTES)
        await self._data_client[1].put(keys, value)

    def log(self) -> str:
        """The last 64 KiB that the masters wrote."""
        return self._log.text()

    async def _leader_to_lose(self) -> Address:
        leader = await self.wait_leader()
        self._forget_data()  # should it lead again, it knows nothing of what this client holds
        return leader

    def _forget_data(self) -> None:
        if self._data_client is not None:
            self._data_client[1].reap()
            self._data_client = None

    def _close(self) -> None:
        self._forget_data()
        for master in self._masters.values():
            master.close()
        self.etcd.close()
        self._log.close()


class _Master:
    def __init__(self, installation: Installation, options: Sequence[str], log: ProcessLog) -> None:
        self._installation = installation
        self._options = options
        self._log = log
        self._ports = (ReservedPort(), ReservedPort())
        self._process: GuardedProcess | None = None
        self.address = Address("127.0.0.1", self._ports[0].number)

    def start(self) -> None:
        self.reap()
        self._process = GuardedProcess(
            [
                str(self._installation.master),
                f"--rpc_port={self._ports[0].number}",
                "--rpc_address=127.0.0.1",
                f"--metrics_port={self._ports[1].number}",
                "--metrics_host=127.0.0.1",
                *self._options,
            ],
            log=self._log,
            environment=self._installation.environment,
        )

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._process.send_signal(number), f"the master at {self.address} does not run"

    async def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)
        assert self._process is not None
        await self._process.wait()

    def reap(self) -> None:
        if self._process is not None:
            self._process.reap()

    def close(self) -> None:
        self.reap()
        for port in self._ports:
            port.release()


async def _serves(address: Address) -> bool:
    """Whether it answers ServiceReady with yes, within a second: it may be stopped."""
    with anyio.move_on_after(_PROBE_LIMIT):
        return await is_serving(address.port)
    return False
