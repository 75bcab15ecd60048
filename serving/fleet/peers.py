"""Gateways of one release tell each other what they have under way: small signed datagrams, none of which has to arrive.

A datagram holds records, whose meaning is the router's. What is lost is lost: the next period says how things are by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol, cast

from serving.core.clock import Clock, monotonic, wall_seconds
from serving.core.errors import ConfigurationError
from serving.core.tasks import end_all
from serving.fleet.dns import LookupFailed, Resolve, resolve
from serving.fleet.seal import Refusal, Seal, Window
from serving.peer_settings import PeerSettings

log = logging.getLogger("serving.fleet")

MOST_PEERS = 256
"""Gateways that are spoken and listened to; a release has fewer."""
LOOKUP_TIMEOUT_SECONDS = 5.0


class News(Protocol):
    """What this gateway has to say, and who wants to hear the others."""

    def records(self) -> Iterable[bytes]:
        """The news since the last call, most important first, each of at most `RECORD_BYTES`."""
        ...

    def hear(self, peer: bytes, record: bytes) -> None:
        """A record of another gateway. Raises: ValueError where it makes no sense."""
        ...

    def forget(self, peer: bytes) -> None:
        """That gateway is silent: what it said no longer counts."""
        ...


@dataclass(slots=True)
class Tally:
    """What went over the wire, in bytes."""

    sent: int = 0
    """To each of the others, all together."""
    received: int = 0
    """Of datagrams that were believed."""
    dropped: int = 0
    """Of records that found no room in their period."""
    refused: dict[Refusal, int] = field(default_factory=lambda: dict.fromkeys(Refusal, 0))
    """Of datagrams that were not believed, or could not be understood."""

    def by_result(self) -> Iterable[tuple[str, int]]:
        refused = sum(self.refused.values())
        return (("sent", self.sent), ("received", self.received), ("dropped", self.dropped), ("refused", refused))


class Peers(asyncio.DatagramProtocol):
    """Sends news to the other gateways, hears theirs, and notices who has fallen silent."""

    def __init__(
        self,
        settings: PeerSettings,
        news: News,
        *,
        resolve: Resolve = resolve,
        clock: Clock = monotonic,
        wall: Clock = wall_seconds,
    ) -> None:
        self._settings = settings
        self._news = news
        self._resolve = resolve
        self._clock = clock
        self._seal = Seal(settings.signing_secret() if settings.on else b"", wall)
        self._transport: asyncio.DatagramTransport | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._heard: dict[bytes, float] = {}
        """When each of the others was heard last."""
        self._windows: OrderedDict[bytes, Window] = OrderedDict()
        """What was seen of each, also of those that have fallen silent: theirs cannot be played again."""
        self._beyond: set[str] = set()
        """Addresses of the others to which this socket cannot send."""
        self._said_beyond: frozenset[str] = frozenset()
        self.targets: tuple[tuple[str, int], ...] = ()
        """Where the others listen."""
        self.tally = Tally()

    @property
    def own(self) -> bytes:
        """This gateway's name among its peers."""
        return self._seal.own

    @property
    def heard(self) -> dict[bytes, float]:
        """The other gateways that were heard lately, and how many seconds ago."""
        now = self._clock()
        return {peer: now - at for peer, at in self._heard.items()}

    @property
    def port(self) -> int:
        """Where this gateway listens."""
        assert self._transport is not None
        return int(self._transport.get_extra_info("sockname")[1])

    async def __aenter__(self) -> Peers:
        settings = self._settings
        if settings.on:
            bound = _bound(settings)
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=bound)
            self._tasks = [
                asyncio.create_task(self._find(), name="peers-find"),
                asyncio.create_task(self._speak(), name="peers-speak"),
            ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_all(self._tasks)
        if self._transport is not None:
            self._transport.close()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's but are no subclass of them.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: object) -> None:
        opened = self._seal.open(data)
        if isinstance(opened, Refusal):
            self._refuse(opened, data)
            return
        sender, number, records = opened
        if sender == self._seal.own:
            return  # the name of all gateways leads here, too
        if sender not in self._heard and len(self._heard) >= MOST_PEERS:
            self._refuse(Refusal.TOO_MANY, data)
            return
        window = self._windows.get(sender)
        if window is None:
            window = self._windows[sender] = Window()
        if not window.take(number):
            self._refuse(Refusal.OLD, data)
            return
        self._heard[sender] = self._clock()
        self._windows.move_to_end(sender)
        if len(self._windows) > 2 * MOST_PEERS:
            self._windows.popitem(last=False)
        self.tally.received += len(data)
        try:
            for record in records:
                self._news.hear(sender, record)
        except ValueError:
            # It is signed, so that another release of this program has written it.
            self._refuse(Refusal.FORMAT, data)

    def error_received(self, exc: Exception) -> None:
        """A gateway that is gone: nothing to do, it will not be looked up again."""

    def _refuse(self, refusal: Refusal, datagram: bytes) -> None:
        self.tally.refused[refusal] += len(datagram)

    # our side

    async def _find(self) -> None:
        failure = ""
        while True:
            self._beyond = set()
            try:
                async with asyncio.timeout(LOOKUP_TIMEOUT_SECONDS):
                    self.targets = (await self._look_up())[:MOST_PEERS]
                self._say_beyond()
                failure = ""
            except (LookupFailed, TimeoutError) as error:
                # The last answer stays: a name server that fails says nothing about gateways.
                reason = str(error) or "no answer in time"
                if reason != failure:
                    log.warning("other gateways cannot be looked up: %s", reason)
                failure = reason
            await asyncio.sleep(self._settings.lookup_seconds)

    async def _look_up(self) -> tuple[tuple[str, int], ...]:
        if self._settings.host is not None:
            return tuple((address, self._settings.port) for address in await self._addresses(self._settings.host))
        found: list[tuple[str, int]] = []
        for host, port in (_parsed(address) for address in self._settings.addresses):
            with contextlib.suppress(LookupFailed):
                # One that has no address now is away, and no reason not to speak with the others.
                found += [(address, port) for address in (await self._addresses(host))[:1]]
        return tuple(found)

    async def _addresses(self, host: str) -> list[str]:
        """The addresses of a name that this socket can send to."""
        found = await self._resolve(host)
        within = [address for address in found if _reaches(self._settings.bind_host, address)]
        if not within:
            self._beyond.update(found)
        return within

    def _say_beyond(self) -> None:
        """Gateways that each listen for themselves alone look as if there was one."""
        beyond = frozenset(self._beyond)
        if beyond - self._said_beyond:
            log.warning(
                "other gateways at %s cannot be told anything from peers.bind_host %s; 0.0.0.0 listens on all IPv4 addresses, "
                ":: on those of IPv6",
                ", ".join(sorted(beyond)),
                self._settings.bind_host,
            )
        self._said_beyond = beyond

    async def _speak(self) -> None:
        while True:
            try:
                self.speak()
            except Exception:
                # Whatever went wrong with these news, the next ones are others.
                log.exception("news for other gateways could not be sent")
            await asyncio.sleep(self._settings.period_seconds)

    def speak(self) -> None:
        """Send the news of one period, and let go of those who were silent for too long."""
        now = self._clock()
        for peer, heard in list(self._heard.items()):
            if now - heard > self._settings.silence_seconds:
                del self._heard[peer]
                self._news.forget(peer)
        records = self._news.records()
        transport, targets = self._transport, self.targets
        if transport is None or not targets:
            return
        datagrams, left_bytes = self._seal.pack(records, self._settings.datagrams_per_period)
        self.tally.dropped += left_bytes
        for datagram in datagrams:
            for target in targets:
                transport.sendto(datagram, target)
            self.tally.sent += len(datagram) * len(targets)


def require_free_peer_port(settings: PeerSettings) -> None:
    """Refuse an address on which no datagrams can be heard. Raises: ConfigurationError."""
    if settings.on:
        _bound(settings).close()


def _bound(settings: PeerSettings) -> socket.socket:
    """The socket that is listened on. Raises: ConfigurationError."""
    bound = socket.socket(socket.AF_INET6 if ":" in settings.bind_host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        bound.setblocking(False)
        bound.bind((settings.bind_host, settings.port))
    except OSError as error:
        bound.close()
        where = f"{settings.bind_host}:{settings.port}"
        raise ConfigurationError(f"peers.port: {where} cannot be listened on: {error.strerror or error}") from None
    return bound


def _reaches(bind_host: str, address: str) -> bool:
    """Whether a socket that is bound to one address can send to the other: of one family, and not from the loopback away."""
    if (":" in bind_host) is not (":" in address):
        return False
    try:
        return not ip_address(bind_host).is_loopback or ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True  # bound to a name, which tells nothing


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
