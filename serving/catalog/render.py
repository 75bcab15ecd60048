"""A profile as data for the chart: everything Kubernetes needs to run its engine, so that no template knows a vendor.

Pure, like the command that it holds. `engine_in_image` is also what `serving engine PROFILE --dry-run --in-image` prints.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import PurePosixPath
from typing import Any

from serving.catalog.argv import EngineCommand, contradictions, engine_command, guarded
from serving.catalog.fit import fit, shape_problems
from serving.catalog.load import find_profile
from serving.catalog.model import Catalog, EngineImage, Profile, Target
from serving.catalog.parallel import accelerators
from serving.catalog.pod import (
    FILES_FOLDER,
    HOME,
    budgets,
    concurrency,
    device,
    fetch,
    hardened_image,
    owned_flags,
    routing,
    simulation,
    wait,
    weights_folder,
    with_ranks,
)
from serving.catalog.speed import Priors, priors_of
from serving.catalog.vocabulary import check
from serving.core.errors import ConfigurationError

PORT = 8000
MODEL_FOLDER = PurePosixPath("/model")
SECRET_FILE = PurePosixPath("/etc/serving/secret/engine-secret")
POD_ENVIRONMENT = {
    "HOME": HOME,
    "USER": "engine",  # torch asks for the user's name, and the image need not know the user id
    "SERVING_ENGINE_SECRET_FILE": str(SECRET_FILE),
}


def engine_in_image(catalog: Catalog, profile_name: str, rank: int = 0) -> EngineCommand:
    """The command of a profile's engine inside vLLM's official image, as the chart runs it, guard included.

    Of an engine that spans several nodes it is the part of one of them; rank 0 leads.

    Raises:
        ConfigurationError: the profile is unknown or unsound.
    """
    profile = find_profile(catalog, profile_name)
    problems = [*check(catalog, profile), *contradictions(profile), *shape_problems(catalog, profile)]
    if problems:
        raise ConfigurationError("\n".join(f"profile {profile.name}: {problem}" for problem in problems))
    command = engine_command(
        catalog,
        profile_name,
        model_path=MODEL_FOLDER,
        host="0.0.0.0",
        port=PORT,
        launcher="command",
        program="vllm",
    )
    argv = with_ranks(command.argv, profile.nodes_per_engine, rank)
    command = EngineCommand(argv, POD_ENVIRONMENT | command.environment)
    return guarded(command, FILES_FOLDER)


def render_profile(catalog: Catalog, profile_name: str) -> dict[str, Any]:
    """The file that the chart reads. Parts that Kubernetes takes as they are have its own spelling.

    Raises:
        ConfigurationError: the profile is unsound, or no image or not enough accelerators are known for it.
    """
    command = engine_in_image(catalog, profile_name)
    profile = find_profile(catalog, profile_name)
    target = catalog.targets[profile.target]
    priors = _priors(catalog, profile)
    return {
        "profile": profile.name,
        "description": profile.description,
        "status": profile.status,
        "model": profile.model,
        "target": profile.target,
        "engine_version": profile.engine_version,
        "image": find_image(catalog, profile).model_dump(mode="json", include={"registry", "repository", "tag", "digest"}),
        "hardened": hardened_image(profile, target),
        "argv": list(command.argv),
        "worker_argv": list(engine_in_image(catalog, profile_name, rank=1).argv) if profile.nodes_per_engine > 1 else None,
        "owned_flags": owned_flags(),
        "environment": dict(sorted(command.environment.items())),
        "port": PORT,
        "fetch": fetch(catalog, profile),
        "weights_folder": weights_folder(profile),
        "weights_bytes": catalog.models[profile.model].checkpoints[profile.checkpoint].weights_bytes,
        "wait": wait(target),
        "simulation": simulation(profile, PORT) if priors else None,
        "resources": _resources(catalog, profile, target),
        "shared_memory_bytes": shared_memory_bytes(profile, target),
        "supplementalGroups": list(target.pod.supplemental_groups),
        "capabilities": list(target.pod.capabilities),
        "nodeSelector": target.nodes.selector,
        "tolerations": [toleration.model_dump(exclude_none=True) for toleration in target.nodes.tolerations],
        "budgets": budgets(catalog, profile, command.argv),
        "concurrency": concurrency(profile),
        "device": device(profile, target),
        "accelerators": accelerators(profile, target),
        "accelerators_per_node": target.accelerators_per_node,
        "nodes_per_engine": profile.nodes_per_engine,
        "price_dollars_per_node_hour": target.dollars_per_node_hour,
        "priors": dataclasses.asdict(priors) if priors else None,
        "routing": routing(profile, priors) if priors else None,
    }


def find_image(catalog: Catalog, profile: Profile) -> EngineImage:
    """The official image of a profile's engine.

    Raises:
        ConfigurationError: nobody has entered one.
    """
    build = catalog.targets[profile.target].engine_build
    for image in catalog.images:
        if (image.version, image.build) == (profile.engine_version, build):
            return image
    known = ", ".join(f"{image.version} for {image.build}" for image in catalog.images) or "none"
    raise ConfigurationError(
        f"profile {profile.name}: engine_version: engines/images.yaml has no image of vLLM {profile.engine_version} for {build}; "
        f"there are: {known}"
    )


def shared_memory_bytes(profile: Profile, target: Target) -> int:
    """Room of /dev/shm, which counts as memory of the pod."""
    return profile.host.shared_memory_bytes or target.pod.shared_memory_bytes


def _priors(catalog: Catalog, profile: Profile) -> Priors | None:
    """None where the target's rates are not published, so that nothing can be said before an engine has run."""
    try:
        return priors_of(catalog, profile)
    except ConfigurationError:
        return None


def _resources(catalog: Catalog, profile: Profile, target: Target) -> dict[str, dict[str, Any]]:
    """Memory is promised whole, since an engine takes what it takes. CPU time has no ceiling: a throttled engine stutters."""
    # On a CPU the weights and the KV cache lie in the node's memory; elsewhere in the accelerator's own.
    needed = fit(catalog, profile).needed_bytes if target.engine_build == "cpu" else profile.memory.overhead_bytes
    memory = f"{math.ceil((needed + shared_memory_bytes(profile, target)) / 2**20)}Mi"
    counted = device(profile, target)
    devices = {counted["resource"]: counted["count"]} if counted else {}
    return {"requests": {"cpu": profile.host.cpu_cores, "memory": memory, **devices}, "limits": {"memory": memory, **devices}}
