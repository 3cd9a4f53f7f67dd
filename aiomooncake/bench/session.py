"""What scenarios measure with: a cluster, load generators that are kept, and the counters of the master."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ..local import LocalCluster
from .delay import DelayedMaster
from .generator import Generator
from .keys import page_keys
from .load import PromptLoad
from .result import Measurement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from .contenders import Contender
    from .load import KeyLoad
    from .result import Load, Result

__all__ = ["Session", "Settings", "Site", "in_turns"]

# Each call of these is one call to the master; the second row counts keys.
_CALLS = ("master_batch_exist_key_requests_total", "master_exist_key_requests_total")
_KEYS = ("master_batch_exist_key_items_total", "master_exist_key_requests_total")


class Settings(NamedTuple):
    """How thorough a run is.

    Attributes:
        mode: Its name.
        rounds: Turns that every contender takes; even, so that turns in both orders are as many.
        seconds: Length of a measured window.
        warm_up: Seconds before it.
        samples: Samples that an open-loop window is long enough for, up to `longest` seconds.
        longest: See `samples`.
        stored: Keys in the store.
        trace: Path of the trace.
        trace_requests: Requests replayed in a round.
        trace_speed: How much faster than recorded.
        pythons: Other interpreters to measure the engine in.
    """

    mode: str
    rounds: int
    seconds: float
    warm_up: float
    samples: int
    longest: float
    stored: int
    trace: Path
    trace_requests: int
    trace_speed: float
    pythons: tuple[str, ...] = ()


class Site(NamedTuple):
    """A master as contenders see it.

    Attributes:
        cluster: Where it runs, for its counters.
        address: Where it is asked: its own address, or that of a proxy before it.
        stack: What ends before the master does.
    """

    cluster: LocalCluster
    address: str
    stack: AsyncExitStack


def in_turns(contenders: Sequence[Contender], rounds: int) -> Iterator[tuple[int, Contender]]:
    """So many rounds of all contenders, in both orders by turns."""
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            yield number, contender


class Session:
    """One run of the benchmark. Entering starts the cluster and stores the keys; leaving ends every process.

    Args:
        settings: How thorough it is.
        result: Where measurements go.
        say: Called with what happens now.
        step: Called after each slice.
    """

    def __init__(
        self, settings: Settings, result: Result, *, say: Callable[[str], object], step: Callable[[], object]
    ) -> None:
        self.settings = settings
        self.say = say
        self._result = result
        self._step = step
        self._generators: dict[tuple[Contender, str], Generator] = {}
        self._proxy: DelayedMaster | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start what every scenario needs."""
        self.say("starting a master")
        await self._stack.__aenter__()
        try:
            self.site = await self._stack.enter_async_context(self.fresh_site(segment_bytes=1 << 30))
            await self.site.cluster.put(page_keys(self.settings.stored))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def fresh_site(self, *, segment_bytes: int) -> AsyncIterator[Site]:
        """A master of its own with nothing stored; it and the load generators that ask it end with the block."""
        async with LocalCluster(segment_bytes=segment_bytes) as cluster, AsyncExitStack() as stack:
            site = Site(cluster, cluster.address, stack)
            try:
                yield site
            finally:
                for key in [key for key in self._generators if key[1] == site.address]:
                    del self._generators[key]

    async def far_site(self, round_trip: float) -> tuple[Site, float]:
        """The master of this session, as far away as said, and the round trip that was really added, in seconds."""
        if self._proxy is None:
            self._proxy = await self._stack.enter_async_context(DelayedMaster(self.site.address))
        added = await self._proxy.set_round_trip(round_trip)
        return self.site._replace(address=self._proxy.address), added

    async def ready(self, contenders: Iterable[Contender], site: Site | None = None) -> None:
        """Start the load generators of these, all at once, as far as they do not run yet."""
        site = site or self.site
        missing = [contender for contender in contenders if (contender, site.address) not in self._generators]
        generators = [
            Generator(
                contender.kind,
                site.address,
                loop=contender.loop,
                options=dict(contender.options),
                python=contender.python,
            )
            for contender in missing
        ]
        outcomes = await asyncio.gather(*(generator.__aenter__() for generator in generators), return_exceptions=True)
        for contender, generator, outcome in zip(missing, generators, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                site.stack.push_async_exit(generator)
                self._generators[contender, site.address] = generator
                self._result.clients[contender.label] = contender.text
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def turns(
        self, contenders: Sequence[Contender], *, rounds: int | None = None, site: Site | None = None
    ) -> AsyncIterator[tuple[int, Contender]]:
        """Rounds of all contenders, in both orders by turns, with their load generators running."""
        await self.ready(contenders, site)
        for turn in in_turns(contenders, self.settings.rounds if rounds is None else rounds):
            yield turn

    async def measure(
        self,
        scenario: str,
        contender: Contender,
        load: Load,
        number: int,
        run: Callable[[Generator], Awaitable[dict[str, Any]]],
        *,
        site: Site | None = None,
        ideal_keys: float | None = None,
    ) -> Measurement:
        """Take one measurement, and keep it."""
        site = site or self.site
        before = await site.cluster.metrics()
        ran = await run(self._generators[contender, site.address])
        after = await site.cluster.metrics()

        lookups = ran.pop("lookups")
        calls, keys = (sum(after.get(name, 0) - before.get(name, 0) for name in names) for names in (_CALLS, _KEYS))
        if ideal_keys is not None:
            ran["ideal_keys"] = ideal_keys
        measurement = Measurement(
            scenario=scenario,
            client=contender.label,
            load=load,
            round=number,
            master_calls=calls / lookups,
            master_keys=keys / lookups,
            **ran,
        )
        self._result.measurements.append(measurement)
        self._step()
        return measurement

    async def closed(
        self,
        scenario: str,
        contender: Contender,
        load: KeyLoad | PromptLoad,
        number: int = 0,
        *,
        marks: Load | None = None,
        site: Site | None = None,
    ) -> Measurement:
        """Measure as many callers as the load has questions, in a closed loop.

        Args:
            scenario: As for `measure`, and so are the others.
            contender: Who.
            load: What its callers ask.
            number: Number of the round.
            marks: What else tells this load apart in results.
            site: Where; None: the session's own.
        """
        seconds, warm_up = self.settings.seconds, self.settings.warm_up
        return await self.measure(
            scenario,
            contender,
            {**load.describe(), **(marks or {})},
            number,
            lambda generator: generator.closed(load, seconds=seconds, warm_up=warm_up),
            site=site,
            ideal_keys=load.ideal_keys() if isinstance(load, PromptLoad) else None,
        )

    def generator(self, contender: Contender, site: Site | None = None) -> Generator:
        """The load generator of one that was made ready."""
        return self._generators[contender, (site or self.site).address]
