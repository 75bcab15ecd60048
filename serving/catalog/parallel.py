"""How an engine is spread over accelerators, as its arguments say."""

from __future__ import annotations

import math
from dataclasses import dataclass

from serving.catalog.model import Profile, Target
from serving.core.errors import ConfigurationError

PARALLEL_ARGUMENTS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


@dataclass(frozen=True, slots=True)
class Parallel:
    """Degrees of parallelism. Their product is the number of accelerators of one engine."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: bool = False
    """Whether routed experts are spread over all ranks and not copied to each data-parallel one."""

    @property
    def accelerators(self) -> int:
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        named = (("TP", self.tensor), ("PP", self.pipeline), ("DP", self.data))
        words = [f"{name}{size}" for name, size in named if size > 1] or ["TP1"]
        return " × ".join(words)


def parallel_of(profile: Profile) -> Parallel:
    """Raises: ConfigurationError: a size is no whole number of 1 or more."""
    sizes = []
    for name in PARALLEL_ARGUMENTS:
        size = profile.arguments.get(name, 1)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigurationError(f"profile {profile.name}: arguments.{name}: must be a whole number, not {size!r}")
        sizes.append(size)
    tensor, pipeline, data = sizes
    return Parallel(tensor, pipeline, data, experts=profile.arguments.get("enable-expert-parallel") is True)


def accelerators(profile: Profile, target: Target) -> int:
    """How many accelerators one engine takes, on all of its nodes.

    Raises:
        ConfigurationError: more than its nodes have, or not as many on each of them.
    """
    count = parallel_of(profile).accelerators
    nodes, each = profile.nodes_per_engine, target.accelerators_per_node
    if count > nodes * each:
        there = (
            f"a node of {target.name} has {each} accelerators"
            if nodes == 1
            else f"{nodes} nodes of {target.name} have {nodes * each}"
        )
        needed = math.ceil(count / each)
        raise ConfigurationError(
            f"profile {profile.name}: arguments: {' × '.join(PARALLEL_ARGUMENTS)} is {count}, and {there}; "
            f"lower one of them, or set nodes_per_engine: {needed}"
        )
    if count % nodes:
        raise ConfigurationError(
            f"profile {profile.name}: nodes_per_engine: {count} accelerators cannot be shared by {nodes} nodes; give a divisor"
        )
    return count
