"""What a request costs at an endpoint, in dollars: machine time that it adds, and what it and others wait.

    cost = price × busy + worth × (latency + busy × delayed)

`busy` are the machine seconds that the request adds: the prefill of what is not cached, and its part of the decoding steps.
`delayed` is how many others each of these seconds holds up: those that are being written there now, and those that will come
while the engine is still at it. It is near nothing on an idle fleet and rises steeply with the load, which makes a cached
prefix worth more the busier the fleet is: no fixed weight of a miss is right for two kinds of traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_LOAD = 0.9
"""Beyond this share of prefill the formula of queues says infinity and means: very much."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How much a second of each kind counts beside a second before the request's own first token.

    Found with benchmarks/routing_sim.py; docs/decisions has the figures. Between half and twice of each nothing much changes.
    """

    queue: float = 2.0
    """Of those that come later and find the engine busy; 1 is what the formula of queues says."""
    decoders: float = 0.2
    """Of each request that is being written while the engine computes the prompt."""
    uneven: float = 2.0
    """The same, but for how many there are in relation to the other endpoints."""
    decode: float = 0.3
    shared_uses: float = 16.0
    """A prefix that so many conversations will use at one more endpoint is charged by half to the one that brings it there."""


DEFAULT_WEIGHTS = Weights()


@dataclass(frozen=True, slots=True)
class Objective:
    """What waiting is worth to a class of requests."""

    name: str
    dollars_per_second: float
    ttft_seconds: float
    """From half of this time to the first token on, each second counts more and more."""
    inter_chunk_seconds: float = 0.2
    """What is to lie between two chunks on average; it is watched, and routing does not look at it."""


OBJECTIVES = {
    "interactive": Objective("interactive", 0.002, 2.0),
    "standard": Objective("standard", 0.0005, 10.0),
    "batch": Objective("batch", 0.00002, 600.0),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What an endpoint costs to use, and how much of the traffic it is to get beside others of its model."""

    dollars_per_second: float = 0.0
    """Of an elastic pool: 0 for machines that are paid whether they are used or not."""
    revision: str = ""
    weight: float = 1.0
