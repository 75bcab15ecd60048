"""The controller with the real gate as its process, against engines whose model is a few lines of arithmetic."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from serving.gate.address import Address
from serving.gate.collect import CollectOptions, collect
from serving.gate.collected import write_collected
from serving.gatekeeper.run import Gatekeeper
from tests.doubles.kubernetes_api import CONFIG_MAPS, PODS, KubernetesApi
from tests.doubles.numeric_engine import NumericEngine
from tests.doubles.settling import become
from tests.gate.conftest import FLOOR
from tests.gatekeeper.doubles import add_gated, condition, digest_of, settings_for

RUN_SECONDS = 240.0


def port(engine: NumericEngine) -> int:
    return int(engine.url.rpartition(":")[2])


@pytest.mark.slow
async def test_pods_are_told_what_serving_gate_run_says_of_their_engines(tmp_path: Path) -> None:
    """A right one, a wrong one, one on a target without a floor, and one that does not answer."""
    reference, floor = tmp_path / "reference.json", tmp_path / "floor.json"
    floor.write_text(FLOOR.model_dump_json())
    parts = ("passages", "templates", "decode")
    words = ["--reference", str(reference), "--format", "bf16", "--parts", ",".join(parts), "--target", "cpu-epyc"]
    pools = {"cpu": [*words, "--floor", str(floor)], "new": words}
    with NumericEngine() as right, NumericEngine(fault=0.6) as wrong:
        write_collected(await asyncio.to_thread(collect, Address(right.url), CollectOptions(parts=parts)), reference)
        async with KubernetesApi() as api:
            add_gated(api, "right", port=port(right))
            add_gated(api, "wrong", flags="wrong", port=port(wrong))
            add_gated(api, "new", flags="new", port=port(right), labels={"serving/pool": "new"})
            add_gated(api, "dead", flags="dead", port=1)
            keeper = asyncio.create_task(Gatekeeper(settings_for(api, pools=pools, retry_seconds=60)).work())
            try:
                for name, said in (
                    ("right", ("True", "Passed")),
                    ("wrong", ("False", "Failed")),
                    ("new", ("False", "NeedsApproval")),
                    ("dead", ("False", "NotJudged")),
                ):
                    await become(lambda name=name, said=said: condition(api, name) == said, within_seconds=RUN_SECONDS)
            finally:
                keeper.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await keeper
            kept = {
                (verdict := json.loads(each["data"]["verdict.json"]))["digest"]: verdict
                for each in api.objects[CONFIG_MAPS].values()
            }
            assert kept.keys() == {digest_of(api, name) for name in ("right", "wrong", "new")}
            found = kept[digest_of(api, "wrong")]
            assert found["outcome"] == "fail" and found["configuration"]["argv"][-1] == "wrong"
            assert found["reason"][:80] in api.objects[PODS]["wrong"]["status"]["conditions"][-1]["message"]
            assert all(verdict["cost"]["prompt_tokens"] > 1000 for verdict in kept.values())
