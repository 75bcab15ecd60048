"""What a simulated engine of a profile is: its limits and speed, from the profile's own arguments and its `simulation`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from serving.catalog.load import find_profile
from serving.catalog.model import Catalog, Profile, Simulation
from serving.catalog.speed import priors_of
from serving.catalog.vocabulary import SIZE, SIZE_UNITS
from serving.core.errors import ConfigurationError
from serving.sim.rates import Rates
from serving.sim.scheduler import Limits

_BATCHED_TOKENS = {"cpu": 2048, "rocm": 8192, "cuda": 8192}
_SEQUENCES = {"cpu": 128, "rocm": 1024, "cuda": 1024}
"""vLLM's defaults for its server, by build."""
_CPU_BLOCK_TOKENS = 128
KEEP_ALIVE_SECONDS = 75.0
SHUTDOWN_SECONDS = 30.0
"""As `serving engine` sets both where the profile says nothing."""


@dataclass(frozen=True)
class EnginePlan:
    """One kind of engine; a process runs any number of it."""

    profile: str
    target: str
    model: str
    version: str
    limits: Limits
    rates: Rates
    block_tokens: int
    capacity_blocks: int
    token_bytes: int = 4
    answer_tokens: int | None = None
    speculated_tokens: int = 0
    """How many tokens a draft has, as the profile says."""
    adapters: tuple[str, ...] = ()
    adapters_may_change: bool = False
    ranks: int = 1
    options: frozenset[str] = frozenset()
    """Names of arguments and variables that are set, as metrics depend on them."""
    keeps_prefixes: bool = True
    tells_details: bool = True
    tracks_load: bool = False
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    shutdown_seconds: float = SHUTDOWN_SECONDS
    """How long running requests may go on after SIGTERM; 0: they are aborted."""

    @property
    def usable_blocks(self) -> int:
        """vLLM keeps one block for nothing; a whole context always has room."""
        return max(self.capacity_blocks - 1, -(-self.limits.max_model_len // self.block_tokens))

    @property
    def draft_tokens(self) -> int:
        """As many as a step yields beyond the sure one, at least."""
        return max(self.speculated_tokens, math.ceil(self.rates.tokens_per_step) - 1)

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model, *self.adapters)


def plan(catalog: Catalog, name: str, *, adapters: tuple[str, ...] = ()) -> EnginePlan:
    """The simulated engine of a profile; `adapters` are LoRA names beside those of its arguments.

    Raises:
        ConfigurationError: there is no such profile, nothing is known of its speed, or its fields contradict each other.
    """
    profile = find_profile(catalog, name)
    simulation = profile.simulation or estimated(catalog, profile)
    target, model = catalog.targets[profile.target], catalog.models[profile.model]
    build = target.engine_build
    max_model_len = _whole(profile, "max-model-len", model.max_context_tokens)
    if simulation.kv_capacity_tokens < max_model_len:
        raise ConfigurationError(
            f"profile {name}: simulation.kv_capacity_tokens: must be at least max-model-len ({max_model_len}), "
            f"not {simulation.kv_capacity_tokens}; vLLM does not start otherwise"
        )
    block_tokens = _whole(profile, "block-size", simulation.block_tokens)
    arguments = profile.arguments
    named = _adapters(profile) + adapters
    return EnginePlan(
        profile=name,
        target=profile.target,
        model=profile.model,
        version=_nearest(profile.engine_version),
        limits=Limits(
            max_num_seqs=_whole(profile, "max-num-seqs", _SEQUENCES[build]),
            max_num_batched_tokens=_whole(profile, "max-num-batched-tokens", _BATCHED_TOKENS[build]),
            max_model_len=max_model_len,
            max_num_queued_reqs=_limit(profile, "max-num-queued-reqs"),
            max_num_queued_tokens=_limit(profile, "max-num-queued-tokens"),
            max_loras=_whole(profile, "max-loras", 1) if named or arguments.get("enable-lora") else 0,
            by_priority=arguments.get("scheduling-policy") == "priority",
            schedules_ahead=arguments.get("async-scheduling", build != "cpu") is not False,
        ),
        rates=Rates.of(simulation),
        block_tokens=block_tokens,
        capacity_blocks=max(1, simulation.kv_capacity_tokens // block_tokens),
        token_bytes=simulation.bytes_per_token,
        answer_tokens=simulation.answer_tokens,
        speculated_tokens=profile.speculation.draft_tokens if profile.speculation is not None else 0,
        adapters=named,
        adapters_may_change=profile.environment.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") in ("1", "true", "True"),
        ranks=_whole(profile, "data-parallel-size", 1),
        options=_options(profile, has_adapters=bool(named), parses_tools=model.tool_call_parser is not None),
        tracks_load=arguments.get("enable-server-load-tracking") is True,
        keep_alive_seconds=float(profile.environment.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", KEEP_ALIVE_SECONDS)),
        shutdown_seconds=float(_whole(profile, "shutdown-timeout", int(SHUTDOWN_SECONDS))),
    )


def estimated(catalog: Catalog, profile: Profile) -> Simulation:
    """The rates of a profile that nobody has measured: those that routing starts from.

    Raises:
        ConfigurationError: the target's file lacks a rate that they are computed from.
    """
    try:
        priors = priors_of(catalog, profile)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"profile {profile.name}: simulation: is missing, and its speed cannot be estimated: {error}; "
            "`serving calibrate URL` measures a running engine and prints the field"
        ) from None
    return Simulation(
        source=f"{priors.status}: {priors.source}",
        kv_capacity_tokens=priors.kv_capacity_tokens,
        prefill_tokens_per_second=priors.prefill_tokens_per_second,
        step_seconds=priors.step_seconds,
        step_seconds_per_sequence=priors.step_seconds_per_request,
        tokens_per_step=priors.tokens_per_step,
    )


def _nearest(version: str) -> str:
    """The version whose metrics a simulated engine has, and which it tells: its own, or the next newer, or the newest."""
    known = sorted(_versions(), key=_numbers)
    return next((each for each in known if _numbers(each) >= _numbers(version)), known[-1])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _versions() -> tuple[str, ...]:
    from importlib import resources

    names = sorted(entry.name for entry in resources.files("serving.sim").joinpath("data").iterdir())
    return tuple(name.removeprefix("vllm-").removesuffix("-metrics.json") for name in names if name.endswith("-metrics.json"))


def _options(profile: Profile, *, has_adapters: bool, parses_tools: bool) -> frozenset[str]:
    given = {name for name, value in profile.arguments.items() if value is not False} | set(profile.environment)
    if has_adapters:
        given.add("enable-lora")
    if parses_tools:
        given.add("tool-call-parser")
    return frozenset(given)


def _adapters(profile: Profile) -> tuple[str, ...]:
    """Names out of `lora-modules`: `name=path` or a mapping with `name`."""
    given = profile.arguments.get("lora-modules", [])
    entries = given if isinstance(given, list) else [given]
    return tuple(str(e["name"]) if isinstance(e, dict) and "name" in e else str(e).partition("=")[0] for e in entries)


def _limit(profile: Profile, name: str) -> int | None:
    return _whole(profile, name, 0) if name in profile.arguments else None


def _whole(profile: Profile, name: str, default: int) -> int:
    """An argument as vLLM reads a size: a whole number, or text that may end in k, m, g (decimal) or K, M, G."""
    value = profile.arguments.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and SIZE.fullmatch(value):
        unit = SIZE_UNITS.get(value[-1])
        return int(value) if unit is None else int(float(value[:-1]) * unit)
    raise ConfigurationError(f"profile {profile.name}: arguments.{name}: must be a whole number, not {value!r}")
