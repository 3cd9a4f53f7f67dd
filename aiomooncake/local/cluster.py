"""`LocalCluster`: a master and a data-holding client, with everything a test wants to do to them."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import anyio

from ..errors import ClosedError, ConfigError, ConnectError
from .data_client import DataClient
from .install import find_installation
from .log import ProcessLog
from .master import Master

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from ..wire.messages import Key
    from .install import Installation

__all__ = ["LocalCluster"]


class LocalCluster:
    """A real `mooncake_master` on free loopback ports, plus a client that holds data, in processes of their own.

        async with LocalCluster() as cluster:
            await cluster.put(["a", "b"])
            async with aiomooncake.connect(cluster.address) as engine:
                assert await engine.prefix_length(["a", "b", "c"]) == 2

    Entering starts both and returns when the master serves and its segment is mounted; leaving kills both. They also
    end when this process ends in any other way, SIGKILL included. Nothing is left on disk: the log has no name.
    A cluster is entered once and belongs to the event loop that entered it. Linux only.

    Args:
        segment_bytes: memory for values, at least 16 MiB, taken as it is written to. It also bounds one value, to
            about a half. From about 90 % on, the master evicts.
        lease_ttl: seconds for which a hit protects a key from eviction and from the official client's `remove`. With 0
            it protects nothing, and the official client cannot read values either. A master's own default is 5 or
            10 s, which tests would have to wait for.
        rpc_threads: threads of the master that serve connections; None: as many as cores, at most 16.
        master_binary: path of another `mooncake_master`; None: the installed one. One in an unpacked wheel gets its
            libraries and its client from there; the installed client does not get on with masters up to 0.3.11.
            Their admin HTTP listens on all interfaces.
        master_args: further command line arguments of the master, such as "--client_ttl=1".
        store: False starts the master only; then nothing can be `put`.
        start_timeout: seconds that entering, or `restart_master`, may take.

    Raises:
        ConfigError: an argument is not usable.
    """

    def __init__(
        self,
        *,
        segment_bytes: int = 64 << 20,
        lease_ttl: float = 0.1,
        rpc_threads: int | None = None,
        master_binary: str | os.PathLike[str] | None = None,
        master_args: Sequence[str] = (),
        store: bool = True,
        start_timeout: float = 10.0,
    ) -> None:
        if segment_bytes < 16 << 20:
            raise ConfigError(f"segment_bytes is {segment_bytes}; Mooncake refuses less than {16 << 20}")
        if lease_ttl < 0:
            raise ConfigError(f"lease_ttl is {lease_ttl}; give seconds, or 0 for no leases")
        if rpc_threads is not None and rpc_threads < 1:
            raise ConfigError(f"rpc_threads is {rpc_threads}; give at least 1, or None for the master's default")
        if isinstance(master_args, str):
            raise ConfigError(f"master_args is the string {master_args!r}; give a sequence of arguments")
        if start_timeout <= 0:
            raise ConfigError(f"start_timeout is {start_timeout}; give seconds, more than 0")
        options = [f"--default_kv_lease_ttl={round(lease_ttl * 1000)}"]
        if rpc_threads is not None:
            options.append(f"--rpc_thread_num={rpc_threads}")
        self._options = [*options, *master_args]
        self._segment_bytes = segment_bytes
        self._master_binary = master_binary
        self._wants_store = store
        self._start_timeout = start_timeout
        self._running: _Running | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        """Start everything. When that fails or is cancelled, nothing is left of it.

        Raises:
            ConfigError: Mooncake is not installed or cannot run here; the message says the cure.
            ConnectError: the master ended, or did not serve in time; the message has the end of its log.
            ClosedError: the cluster was entered before.
        """
        if self._running is not None or self._closed:
            raise ClosedError("a LocalCluster is entered once; make another one")
        try:
            self._running = _Running(find_installation(self._master_binary), self._options)
            await self._start(self._running)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Kill master and client and wait for their end. Idempotent; cancelling only makes it wait on the thread."""
        self._closed = True
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    @property
    def address(self) -> str:
        """`127.0.0.1:PORT` of the master's RPC. It stays the same when the master is restarted."""
        return self._require_running().master.address

    @property
    def metrics_address(self) -> str:
        """`127.0.0.1:PORT` of the master's admin HTTP. It stays the same when the master is restarted."""
        return self._require_running().master.admin_address

    @property
    def metrics_url(self) -> str:
        """The root of the admin HTTP, without a slash: `/metrics`, `/health`, `/batch_query_keys?keys=a,b` follow."""
        return f"http://{self.metrics_address}"

    @property
    def master_pid(self) -> int:
        """The master's process id.

        Raises:
            ConnectError: no master runs.
        """
        master = self._require_running().master
        if master.pid is None:
            raise ConnectError(f"no master runs at {master.address}; `restart_master` starts one")
        return master.pid

    async def put(self, keys: Key | Iterable[Key], value: bytes = b"x") -> None:
        """Store `value` under one key or many, in batches; they exist when it returns. Existing keys keep theirs.

        A call that is cancelled is carried out all the same. With a dead master one takes up to 5 s to fail, with one
        that is stopped 30 s.

        Raises:
            StoreError: Mooncake refused, for example an empty value (-600); `key` is the first of the batch concerned.
                Keys of earlier batches are stored.
            InvalidKeyError: a key is neither str nor bytes, or has no UTF-8 form; nothing was stored.
            ConfigError: the cluster was made with store=False.
            ConnectionLostError: the data-holding client ended; `restart_master` replaces it.
            ClosedError: the cluster is not running.
        """
        await self._require_client().put(_listed(keys), value)

    async def remove(self, keys: Key | Iterable[Key]) -> None:
        """Remove one key or many, in spite of leases; keys that do not exist are fine. Otherwise it is as `put`.

        Raises:
            StoreError: Mooncake refused; `key` is the one concerned. The keys before it are removed. Masters before
                0.3.9 refuse a key with a lease (-706).
        """
        await self._require_client().remove(_listed(keys))

    async def kill_master(self) -> None:
        """End the master by SIGKILL, also when it is stopped; nothing happens when none runs."""
        await self._require_running().master.end(signal.SIGKILL)

    async def terminate_master(self) -> None:
        """Ask the master to end (SIGTERM), also when it is stopped, and wait for that; nothing happens without one."""
        await self._require_running().master.end(signal.SIGTERM)

    def stop_master(self) -> None:
        """Freeze the master (SIGSTOP): connections stay and new ones are accepted by the kernel, but nothing answers.

        Raises:
            ConnectError: no master runs.
        """
        self._require_running().master.send_signal(signal.SIGSTOP)

    def continue_master(self) -> None:
        """Let a stopped master go on (SIGCONT).

        Raises:
            ConnectError: no master runs.
        """
        self._require_running().master.send_signal(signal.SIGCONT)

    async def restart_master(self) -> None:
        """Start a master on the same ports, after killing the one that runs, if any. It knows no key.

        The data-holding client is replaced as well: the old one would take about a second to find the new master, and
        fail until then. When this fails or is cancelled, no master runs; it can be called again.

        Raises:
            ConfigError, ConnectError: as for entering.
        """
        await self._start(self._require_running())

    async def metrics(self) -> dict[str, float]:
        """The master's counters and gauges, by name, labels included as the master writes them.

        For example `master_batch_exist_key_requests_total` and `master_key_count`. Which there are depends on the
        master's version.

        Raises:
            ConnectError: the admin HTTP did not answer within 5 s.
        """
        master = self._require_running().master
        try:
            page = await master.admin_get("/metrics")
        except OSError as error:
            raise ConnectError(f"no metrics from the master's admin HTTP at {master.admin_address}: {error}") from error
        return _parse_metrics(page.decode())

    def log(self) -> str:
        """The last 64 KiB that master and client wrote, those of earlier masters included."""
        return self._require_running().log.text()

    def __repr__(self) -> str:
        if self._running is None:
            return f"<LocalCluster {'closed' if self._closed else 'not started'}>"
        master = self._running.master
        if master.pid is None:
            state = "no master"
        else:
            state = f"master {master.pid} {'stopped' if master.is_stopped else 'running'}"
        store = f"{self._segment_bytes >> 20} MiB store" if self._wants_store else "no store"
        return f"<LocalCluster {master.address}, {state}, {store}>"

    async def _start(self, running: _Running) -> None:
        with anyio.move_on_after(self._start_timeout) as scope:
            await running.start(self._segment_bytes if self._wants_store else None)
        if scope.cancelled_caught:
            raise ConnectError(
                f"{running.installation.master} did not serve at {running.master.address} within"
                f" {self._start_timeout} s; {running.log.tail()}"
            )

    def _require_running(self) -> _Running:
        if self._running is None:
            raise ClosedError(f"the cluster {'was closed' if self._closed else 'was not entered: use `async with`'}")
        return self._running

    def _require_client(self) -> DataClient:
        running = self._require_running()
        if not self._wants_store:
            raise ConfigError("the cluster was made with store=False, so it holds no data; leave that out")
        if running.client is None:
            raise ConnectError("no data-holding client runs, as the master could not be restarted")
        return running.client


def _listed(keys: Key | Iterable[Key]) -> list[Key]:
    return [keys] if isinstance(keys, (str, bytes)) else list(keys)


def _parse_metrics(page: str) -> dict[str, float]:
    """Samples of Prometheus' text format: `name value` or `name{labels} value`, a line each."""
    samples = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
    return {name.strip(): float(value) for name, _, value in samples}


class _Running:
    """What an entered cluster owns. Everything in it ends with `aclose`."""

    def __init__(self, installation: Installation, options: Sequence[str]) -> None:
        self.installation = installation
        self.log = ProcessLog()
        self.master = Master(installation, options, self.log)
        self.client: DataClient | None = None
        self._starting = anyio.Lock()

    async def start(self, segment_bytes: int | None) -> None:
        """Start a master, and a client unless `segment_bytes` is None, in place of those that run."""
        async with self._starting:
            try:
                await self._end_processes()
                client = None
                if segment_bytes is not None:
                    client = self.client = DataClient(self.installation, self.log)  # imports while the master starts
                await self.master.start()
                if client is not None and segment_bytes is not None:
                    await client.setup(self.master.address, segment_bytes)
            except BaseException:
                self._reap_processes()
                raise

    async def aclose(self) -> None:
        self.master.refuse_to_start()  # first: a start that is under way must see why its master ends
        try:
            await self._end_processes()
        finally:
            self._reap_processes()
            self.master.close()
            self.log.close()

    async def _end_processes(self) -> None:
        """Kill master and client, wait for that on the loop, and on the thread when cancelled."""
        client = self.client
        try:
            self.master.kill()
            if client is not None:
                client.process.kill()
                await client.process.wait()
            await self.master.wait()
        finally:
            self._reap_processes()

    def _reap_processes(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.reap()
        self.master.reap()
