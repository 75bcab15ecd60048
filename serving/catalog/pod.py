"""The parts of a rendered profile that are about its pods: other ranks, places of the weights, waits, simulation. Pure."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

from serving import __version__
from serving.catalog.argv import OURS
from serving.catalog.model import Catalog, HubSource, Profile, PublishedSource, Target
from serving.catalog.parallel import PARALLEL_ARGUMENTS, accelerators
from serving.catalog.speed import Priors

FILES_FOLDER = PurePosixPath("/etc/serving/engine")
"""Where the guard and the programs of a pod are mounted."""
WEIGHTS_VOLUME = PurePosixPath("/weights")
"""Where an init container sees the whole volume of the weights; the engine sees one folder of it as its model."""
HOME = "/home/engine"
"""A volume: the image's own file system is read-only. Everything that engines compile and keep lies below it."""

RANK_ARGUMENTS = ("nnodes", "node-rank", "master-addr", "master-port", "headless")
MASTER_PORT = "29501"
LEADER_ADDRESS = "$(LWS_LEADER_ADDRESS)"
"""The variable is the LeaderWorkerSet controller's; Kubernetes puts it into the command."""
NODE_RANK = "$(NODE_RANK)"
"""The variable is the chart's, from the label that the controller gives each pod of a group."""

SHORTEST_START_SECONDS = 600
LOAD_BYTES_PER_SECOND = 100_000_000
"""A slow network disk. A start that needs more than the budget is killed and begins anew, so the budget is generous."""
MEMORY_WAIT_SECONDS = 900
PRE_STOP_SECONDS = 10
"""An engine serves on for so long after it was told to stop: until gateways have heard that it leaves."""
STOP_MARGIN_SECONDS = 15
"""Beyond the engine's own time to finish requests, until Kubernetes kills it."""


def with_ranks(argv: tuple[str, ...], node_count: int, rank: int) -> tuple[str, ...]:
    """The command of one node's part of an engine; rank 0 leads and is the only one that answers requests."""
    if node_count == 1:
        return argv
    words = ("--node-rank", "0") if rank == 0 else ("--node-rank", NODE_RANK, "--headless")
    return (*argv, "--master-addr", LEADER_ADDRESS, "--master-port", MASTER_PORT, *words)


def owned_flags() -> list[str]:
    """Flags that a pool of the chart may not give: they are the profile's shape, or the chart's wiring."""
    wiring = ("middleware", "shutdown-timeout", "api-key", "ssl-keyfile", "ssl-certfile", "config")
    more_devices = ("data-parallel-size-local", "prefill-context-parallel-size")
    short = ("tp", "pp", "dp", "dpl", "pcp")
    return sorted(
        {
            *(f"--{name}" for name in (*OURS, *PARALLEL_ARGUMENTS, *more_devices, *RANK_ARGUMENTS, *wiring)),
            *(f"-{s}" for s in short),
        }
    )


def weights_folder(profile: Profile) -> str:
    """The folder of a checkpoint in a volume that many pools may share; behind it comes the revision."""
    return f"models/{profile.model}-{profile.checkpoint}"


def fetch(catalog: Catalog, profile: Profile) -> dict[str, Any] | None:
    """How the weights come into their volume; None where the checkpoint is on no hub. `revision` is None where none is pinned."""
    checkpoint = catalog.models[profile.model].checkpoints[profile.checkpoint]
    hub = next((source for source in checkpoint.sources if isinstance(source, HubSource | PublishedSource)), None)
    if hub is None:
        return None
    revision, digests = (hub.revision, hub.sha256_by_file) if isinstance(hub, HubSource) else (None, {})
    return {
        "program": ["python3", str(FILES_FOLDER / "fetch_model.py")],
        "repository": hub.repository,
        "revision": revision,
        "volume": str(WEIGHTS_VOLUME),
        "files": [f"{name}={digest}" for name, digest in sorted(digests.items())],
        "environment": {"HF_HUB_DISABLE_TELEMETRY": "1", "HOME": HOME},
        "seconds": load_seconds(catalog, profile),
    }


def load_seconds(catalog: Catalog, profile: Profile) -> int:
    """How long the weights may take to come over a slow network, or from a slow disk into an engine."""
    weights_bytes = catalog.models[profile.model].checkpoints[profile.checkpoint].weights_bytes
    return SHORTEST_START_SECONDS + math.ceil(weights_bytes / LOAD_BYTES_PER_SECOND)


def wait(target: Target) -> dict[str, Any] | None:
    """What an engine's pod waits for before it starts; None where there is nothing to wait for."""
    if not target.pod.waits_for_memory:
        return None
    program = str(FILES_FOLDER / "wait_for_memory.py")
    return {"argv": ["python3", program, str(MEMORY_WAIT_SECONDS)], "seconds": MEMORY_WAIT_SECONDS}


def simulation(profile: Profile, port: int) -> dict[str, Any]:
    """The command of the profile's simulator in the gateway's image."""
    return {"argv": ["serving", "sim", "--profile", profile.name, "--host", "0.0.0.0", "--port", str(port)]}


def hardened_image(profile: Profile, target: Target) -> dict[str, str]:
    """The image that Dockerfile.{build} makes of vLLM's own; it is in the registry of our images."""
    return {"repository": f"serving-engine-{target.engine_build}", "tag": f"{__version__}-vllm{profile.engine_version}"}


def budgets(catalog: Catalog, profile: Profile, argv: tuple[str, ...]) -> dict[str, int]:
    """Seconds that the steps of a pod's life may take."""
    drain_seconds = int(argv[argv.index("--shutdown-timeout") + 1]) if "--shutdown-timeout" in argv else 0
    return {
        "startup_seconds": load_seconds(catalog, profile),
        "pre_stop_seconds": PRE_STOP_SECONDS,
        "drain_seconds": drain_seconds,
        "stop_margin_seconds": STOP_MARGIN_SECONDS,
    }


def device(profile: Profile, target: Target) -> dict[str, Any] | None:
    """What the device plugin counts, and how many of it each pod of an engine takes."""
    if target.nodes.resource is None:
        return None
    return {"resource": target.nodes.resource, "count": accelerators(profile, target) // profile.nodes_per_engine}


def concurrency(profile: Profile) -> int | None:
    """Requests that one engine runs at once, for scaling; None where the profile leaves it to the engine."""
    value = profile.arguments.get("max-num-seqs")
    return value if isinstance(value, int) else None


def routing(profile: Profile, priors: Priors) -> dict[str, Any]:
    """What the gateway's setting `routing.pools` knows of an engine beforehand. Gateways know its price by its target."""
    known: dict[str, Any] = {
        "prefill_tokens_per_second": priors.prefill_tokens_per_second,
        # The gateway counts in seconds for a token of a request, of which one step may bring several.
        "step_seconds": float(f"{priors.step_seconds / priors.tokens_per_step:.4g}"),
        "step_seconds_per_sequence": float(f"{priors.step_seconds_per_request / priors.tokens_per_step:.4g}"),
        "sequences": concurrency(profile),
        "cache_tokens": priors.kv_capacity_tokens,
        "elastic": priors.elastic,
        "accelerators": priors.accelerators,
    }
    return {key: value for key, value in known.items() if value is not None}
