"""The controller with the real gate and the real CPU engine behind a made-up API server: a pod becomes ready by its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving import cli
from serving.gatekeeper.run import Gatekeeper
from tests.doubles.kubernetes_api import CONFIG_MAPS, KubernetesApi
from tests.doubles.real_engine import RealEngine
from tests.doubles.settling import become
from tests.gatekeeper.doubles import add_gated, condition, settings_for, verdict_names

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
RUN_SECONDS = 240.0
PARTS = ("--parts", "passages,templates,decode")


async def gate(*words: str) -> None:
    done = await asyncio.to_thread(CliRunner().invoke, cli.app, ["gate", *words])
    assert done.exit_code == 0, f"{done.output}{done.exception}"


async def test_an_engine_is_judged_at_its_own_address(real_engine: RealEngine, tmp_path: Path) -> None:
    """Of two pools with one engine each, one has a floor and passes, and the other waits for a person."""
    reference, floor = tmp_path / "reference.json", tmp_path / "floor.json"
    await gate("collect", real_engine.url, "--output", str(reference))
    await gate("floor", real_engine.url, "--runs", "2", "--output", str(floor))
    words = ["--reference", str(reference), "--format", "bf16", "--target", "cpu-epyc", *PARTS]
    pools = {"cpu": [*words, "--floor", str(floor)], "other": words}
    port = int(real_engine.url.rpartition(":")[2])
    async with KubernetesApi() as api:
        add_gated(api, "a", port=port)
        add_gated(api, "b", port=port, flags="new", labels={"serving/pool": "other"})
        keeper = asyncio.create_task(Gatekeeper(settings_for(api, pools=pools, runs_at_once=1)).work())
        try:
            await become(lambda: api.is_ready("a"), within_seconds=RUN_SECONDS)
            await become(lambda: condition(api, "b") == ("False", "NeedsApproval"), within_seconds=RUN_SECONDS)
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
    kept = [json.loads(api.objects[CONFIG_MAPS][name]["data"]["verdict.json"]) for name in verdict_names(api)]
    print([(each["outcome"], each["reason"], each["cost"]) for each in kept])
    assert sorted(each["outcome"] for each in kept) == ["not_decided", "pass"]
    assert all(each["cost"]["prompt_tokens"] > 1000 for each in kept)
