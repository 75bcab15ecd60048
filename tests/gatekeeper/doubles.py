"""A judge that says what it was told to, and pods of gated pools."""

from __future__ import annotations

import asyncio
from typing import Any

from serving.gate.verdict import Verdict
from serving.gatekeeper.controller import JudgeFailed
from serving.gatekeeper.pods import CONDITION, GatedPod, gated_pod
from serving.gatekeeper.settings import GatekeeperSettings
from tests.doubles.kubernetes_api import CONFIG_MAPS, EVENTS, PODS, KubernetesApi
from tests.gate.verdicts import GOOD

LEASE_SECONDS = 4.0
"""A leader that a busy machine keeps from renewing for three of them has lost it, as it should."""
LABELS = {"app": "engine", "serving/gated": "true", "serving/pool": "cpu", "serving/target": "cpu-epyc"}


def settings_for(api: KubernetesApi, **fields: Any) -> GatekeeperSettings:
    return GatekeeperSettings.model_validate(
        {
            "namespace": "serving",
            "name": "llm-gate",
            "kubernetes": {"api_url": api.url, "list_seconds": 1.0, "timeout_seconds": 1.0},
            "lease": {"seconds": LEASE_SECONDS, "renew_within_seconds": 0.75 * LEASE_SECONDS, "period_seconds": 0.1},
            "retry_seconds": 0.05,
            **fields,
        }
    )


def add_gated(
    api: KubernetesApi, name: str, *, flags: str = "good", port: int = 8000, labels: dict[str, str] | None = None, **fields: Any
) -> None:
    """A pod whose configuration is told by one word of its command. `labels` go over the usual ones."""
    api.add_pod(
        name,
        "127.0.0.1",
        port=port,
        labels=LABELS | (labels or {}),
        gates=[CONDITION],
        image="vllm@sha256:" + "a" * 64,
        command=["vllm", "serve", flags],
        annotations={"serving/checkpoint": "tiny@1"},
        **fields,
    )


def digest_of(api: KubernetesApi, name: str) -> str:
    pod = gated_pod(api.objects[PODS][name])
    assert pod is not None
    return pod.digest


def condition(api: KubernetesApi, name: str) -> tuple[str, str] | None:
    """Status and reason."""
    conditions = api.objects[PODS][name]["status"]["conditions"]
    return next(((each["status"], each["reason"]) for each in conditions if each["type"] == CONDITION), None)


def events(api: KubernetesApi) -> dict[str, str]:
    """Message by reason. One is written a moment after the condition that it tells of."""
    return {each["reason"]: each["message"] for each in api.objects[EVENTS].values()}


def verdict_names(api: KubernetesApi) -> set[str]:
    return {name for name in api.objects[CONFIG_MAPS] if "-verdict-" in name}


def verdict_on(pod: GatedPod, outcome: str = "pass", **fields: Any) -> Verdict:
    reason = {"pass": "all tests passed", "fail": "matched.kl: 0.09, not below 0.005"}.get(outcome, "no floor on this target")
    update = {"configuration": pod.configuration, "digest": pod.digest, "outcome": outcome, "reason": reason, **fields}
    return GOOD.model_copy(update=update)


class ToldJudge:
    """Fails whatever runs with the word `bad`, cannot decide on `new`, and breaks off on `broken`."""

    def __init__(self) -> None:
        self.judged: list[str] = []
        """Names of the pods, in order."""
        self.running = 0
        self.cancelled = 0
        self.go = asyncio.Event()
        self.go.set()
        """Cleared: runs wait."""
        self.broken = True

    async def __call__(self, pod: GatedPod) -> Verdict:
        self.judged.append(pod.name)
        self.running += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        word = pod.configuration.argv[-1]
        if word == "broken" and self.broken:
            raise JudgeFailed("the engine does not answer")
        if word.startswith("new"):
            return verdict_on(pod, "not_decided", calibrated=False)
        return verdict_on(pod, "fail" if word.startswith("bad") else "pass")
