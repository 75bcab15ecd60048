"""What the controller writes is what Kubernetes knows: kinds and fields of three versions, and names that it takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re

import kubernetes_validate
import pytest

from serving.gatekeeper import controller as module
from serving.gatekeeper.pods import CONDITION
from serving.gatekeeper.run import Gatekeeper
from tests.doubles.kubernetes_api import CONFIG_MAPS, EVENTS, LEASES, KubernetesApi
from tests.doubles.settling import become
from tests.gatekeeper.doubles import ToldJudge, add_gated, events, settings_for

VERSIONS = ("1.28.0", "1.31.0", kubernetes_validate.latest_version())
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
QUALIFIED = re.compile(rf"({SUBDOMAIN.pattern}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


def test_the_condition_has_a_qualified_name() -> None:
    """As the API server wants it of readiness gates and of conditions that are not its own."""
    assert QUALIFIED.fullmatch(CONDITION)


def updates(api: KubernetesApi) -> int:
    return sum(asked.verb == "update" for asked in api.asked)


async def test_what_is_written_is_what_kubernetes_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    async with KubernetesApi() as api:
        keeper = asyncio.create_task(Gatekeeper(settings_for(api), ToldJudge()).work())
        for name, flags in (("a", "good"), ("b", "bad"), ("c", "new")):
            add_gated(api, name, flags=flags)
        await become(lambda: events(api).keys() >= {"QualityPassed", "QualityFailed", "QualityNeedsApproval"})
        renewed = updates(api)
        await become(lambda: updates(api) > renewed)
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper
        written = [json.loads(asked.body) for asked in api.asked if asked.verb in ("create", "update")]
        patches = [json.loads(asked.body) for asked in api.asked if asked.verb == "patch"]
        objects = [each for path in (CONFIG_MAPS, EVENTS, LEASES) for each in api.objects[path].values()]
    assert {each["kind"] for each in written} == {"ConfigMap", "Event", "Lease"}
    for each in (*written, *objects):
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
        metadata = each["metadata"]
        assert SUBDOMAIN.fullmatch(metadata["name"]) and len(metadata["name"]) <= 253
        for key, value in metadata.get("labels", {}).items():
            assert QUALIFIED.fullmatch(key) and LABEL.fullmatch(value) and len(value) <= 63
        if each["kind"] == "ConfigMap":
            assert len(json.dumps(each)) < 1_000_000
    for patch in patches:
        (said,) = patch["status"]["conditions"]
        assert re.fullmatch(r"[A-Z][A-Za-z]+", said["reason"]) and len(said["message"]) <= 1000
        assert patch.keys() == {"metadata", "status"} and patch["metadata"].keys() == {"uid"}
