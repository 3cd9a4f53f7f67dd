"""Which master leads, as the masters themselves agree on it in etcd.

In HA mode the leader holds the key `mooncake-store/<cluster>/master_view` with a lease; its value is the `host:port`
of the leader's RPC. The key goes when the lease runs out, 5 s after the leader's last sign of life.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, NoReturn

import anyio

from ..errors import ConfigError, ConnectError
from ..target import parse_address
from .etcd import EtcdError, EtcdMember, open_http

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import httpx

    from ..target import Address
    from .etcd import Entry

__all__ = ["EtcdLeader"]

_log = logging.getLogger(__name__)

# Seconds between reads beside a watch. One on an etcd that hangs, or through a network that has forgotten it, is
# silent for ever; an idle read costs either side less than a millisecond.
_PROBE_INTERVAL = 2.0
# Seconds between attempts: full jitter below a bound that doubles with each round of the members.
_BACKOFF_FIRST = 0.05
_BACKOFF_LIMIT = 1.0


class EtcdLeader:
    """Follows the leader of one Mooncake cluster.

    It holds nothing open between calls, so there is nothing to close. `read` and `watch` may run at the same time.
    """

    def __init__(self, endpoints: Sequence[Address], cluster: str) -> None:
        """Name the client addresses of an etcd, one or several, and the masters' `--cluster_id`.

        Raises:
            ConfigError: httpx is not installed, or an argument is not usable.
        """
        if not endpoints:
            raise ConfigError("endpoints is empty; name at least one address of the etcd")
        self._members = [EtcdMember(address) for address in endpoints]
        self._cluster = cluster
        self._key = f"mooncake-store/{cluster}/master_view".encode()

    async def read(self) -> Address | None:
        """The leader that etcd names now, asked of one member after another, each for at most 2 s.

        Returns:
            Where its RPC is, or is about to be: a new leader is named some 5 s before it serves. None when no master
            leads, or when what is named is no address (which is logged).

        Raises:
            ConnectError: no member answered; the message has each one's address and cause.
        """
        failures: list[str] = []
        cause: EtcdError | None = None
        async with open_http() as http:
            for member in list(self._members):
                try:
                    entry = await member.get(http, self._key)
                except EtcdError as error:
                    cause = error
                    failures.append(f"{member.address}: {error}")
                else:
                    self._prefer(member)
                    return _named(entry.value, self._cluster, otherwise=None)
        raise ConnectError(
            f"no etcd tells which master leads the Mooncake cluster {self._cluster!r}: {'; '.join(failures)}. Is etcd"
            " running there?"
        ) from cause

    async def watch(self, on_leader: Callable[[Address | None], None]) -> NoReturn:
        """Call `on_leader` with the leader as soon as it is known, and again at every change, until cancelled.

        It gets what `read` would return; of changes that come together, only the last. A value that is no address
        changes nothing, but is logged. As long as no etcd answers, the leader last named stands: what goes wrong with
        etcd is logged and tried again, for ever, with whichever member answers. A member that hangs is given up after
        4 s at most. Only what `on_leader` itself raises comes out of this method.

        Cancelling closes everything that was opened.
        """
        view = _View(self._cluster, on_leader)
        retry = _Retry(self._cluster, len(self._members))
        async with open_http() as http:
            while True:
                member = self._members[0]
                try:
                    await self._follow(member, http, view, retry)
                except EtcdError as error:
                    delay = retry.failed(member.address, error)
                    self._defer(member)
                    await anyio.sleep(delay)

    async def _follow(self, member: EtcdMember, http: httpx.AsyncHTTPTransport, view: _View, retry: _Retry) -> None:
        """Keep `view` up to date with the help of one member. Returns when it needs a new watch."""
        entry = await member.get(http, self._key)
        view.begin(entry)
        watching = asyncio.ensure_future(member.watch(http, self._key, after=entry.revision, on_entry=view.update))
        try:
            while not (await asyncio.wait([watching], timeout=_PROBE_INTERVAL))[0]:
                entry = await member.get(http, self._key)
                retry.succeeded(member.address)
                if view.update(entry):
                    return  # the watch should have told: it hangs, unless it was just about to
            await watching
        finally:
            watching.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(watching, return_exceptions=True)

    def _prefer(self, member: EtcdMember) -> None:
        """Ask this one first from now on."""
        self._members.remove(member)
        self._members.insert(0, member)

    def _defer(self, member: EtcdMember) -> None:
        """Ask this one last from now on."""
        self._members.remove(member)
        self._members.append(member)


class _View:
    """What the key says, from reads and events that may overtake each other; it tells of each change of the leader."""

    def __init__(self, cluster: str, on_leader: Callable[[Address | None], None]) -> None:
        self._cluster = cluster
        self._on_leader = on_leader
        self._revision = 0
        self._value: bytes | None = None
        self._leader: Address | None = None
        self._has_begun = False

    def begin(self, entry: Entry) -> None:
        """Take what was read before a watch begins, in any case: an etcd that was set up anew counts from 1 again."""
        self._revision = 0
        self.update(entry)
        if not self._has_begun:
            self._has_begun = True
            self._on_leader(self._leader)

    def update(self, entry: Entry) -> bool:
        """Take it unless something newer is known; whether the value is another one now."""
        if entry.revision < self._revision:
            return False
        self._revision = entry.revision
        if entry.value == self._value:
            return False
        self._value = entry.value
        leader = _named(entry.value, self._cluster, otherwise=self._leader)
        if leader != self._leader:
            self._leader = leader
            if self._has_begun:
                self._on_leader(leader)
        return True


class _Retry:
    """When to try again, and how much to say about it: one warning an outage, and one line when it is over."""

    def __init__(self, cluster: str, members: int) -> None:
        self._cluster = cluster
        self._members = members
        self._failures = 0

    def failed(self, address: Address, error: EtcdError) -> float:
        """Note a failure; seconds to wait before the next attempt."""
        rounds = min(self._failures // self._members, 16)
        self._failures += 1
        level = logging.WARNING if self._failures == self._members else logging.DEBUG
        _log.log(
            level, "cannot follow the leader of the Mooncake cluster %r: etcd %s: %s", self._cluster, address, error
        )
        return random.uniform(0.0, min(_BACKOFF_LIMIT, _BACKOFF_FIRST * 2.0**rounds))

    def succeeded(self, address: Address) -> None:
        """Note that a member has answered for a while: one that only just answered might fail again at once."""
        if self._failures >= self._members:
            _log.info("etcd %s tells the leader of the Mooncake cluster %r again", address, self._cluster)
        self._failures = 0


def _named(value: bytes | None, cluster: str, *, otherwise: Address | None) -> Address | None:
    """The leader that the key's value names; `otherwise`, if it is no address."""
    if value is None:
        return None
    try:
        return parse_address(value.decode())
    except ValueError as error:
        _log.warning("ignored what etcd names as leader of the Mooncake cluster %r: %s", cluster, error)
        return otherwise
