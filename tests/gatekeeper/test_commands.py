"""What people say and see: approvals against an API server on a real socket, and the process of the controller."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from serving.core.errors import ConfigurationError
from serving.gatekeeper.commands import register
from serving.gatekeeper.records import config_map
from serving.gatekeeper.run import Gatekeeper
from serving.gatekeeper.settings import load_gatekeeper_settings
from tests.doubles.kubernetes_api import CONFIG_MAPS, PODS, KubernetesApi
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import MetricValues
from tests.doubles.settling import HANG_SECONDS, become
from tests.gate.verdicts import GOOD
from tests.gatekeeper.doubles import ToldJudge, add_gated, condition, digest_of, events, settings_for

APP = typer.Typer()
register(APP)


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi() as started:
        yield started


@pytest.fixture
def config(api: KubernetesApi, tmp_path: Path) -> Path:
    path = tmp_path / "gate.yaml"
    settings = {"namespace": "serving", "name": "llm-gate", "owner": "llm-gate", "kubernetes": {"api_url": api.url}}
    path.write_text(yaml.safe_dump(settings))
    return path


async def run(*words: str) -> tuple[int, str]:
    """Status and output of a command; in a thread, since it has a loop of its own. Raises: ConfigurationError."""
    done = await asyncio.to_thread(CliRunner().invoke, APP, list(words))
    if isinstance(done.exception, ConfigurationError):
        raise done.exception
    return done.exit_code, done.output


def write_verdict(api: KubernetesApi, **fields: Any) -> str:
    verdict = GOOD.model_copy(update=fields)
    api.write(CONFIG_MAPS, config_map("llm-gate", "cpu", verdict))
    return verdict.digest


async def test_an_approval_lets_it_serve_and_is_seen(api: KubernetesApi, config: Path) -> None:
    api.write(CONFIG_MAPS, {"metadata": {"name": "llm-gate", "uid": "owner-uid"}, "data": {}})
    judge = ToldJudge()
    keeper = Gatekeeper(settings_for(api, owner="llm-gate"), judge)
    work = asyncio.create_task(keeper.work())
    add_gated(api, "a", flags="new")
    await become(lambda: condition(api, "a") == ("False", "NeedsApproval"))
    digest = digest_of(api, "a")
    status, said = await run("approve", digest[:10], "--reason", "two people looked", "--by", "ann", "--config", str(config))
    assert status == 0 and "by the word of ann (not_decided: no floor on this target)" in said
    await become(lambda: api.is_ready("a"))
    metrics = MetricValues(keeper.metrics.exposition().decode())
    assert metrics.sum("serving_gate_approvals_total", pool="cpu") == 1
    assert metrics.sum("serving_gate_verdict", pool="cpu", digest8=digest[:8], verdict="not_decided") == 1
    assert metrics.sum("serving_gate_runs_total", pool="cpu", result="not_decided") == 1
    assert metrics.sum("serving_gate_leader") == 1
    await become(lambda: "QualityApproved" in events(api))
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    assert "ann" in events(api)["QualityApproved"]
    (kept,) = [each for name, each in api.objects[CONFIG_MAPS].items() if "-approval-" in name]
    assert kept["immutable"] is True and json.loads(kept["data"]["approval.json"])["reason"] == "two people looked"
    owners = [each["metadata"].get("ownerReferences") for name, each in api.objects[CONFIG_MAPS].items() if name != "llm-gate"]
    assert all(each[0]["uid"] == "owner-uid" for each in owners), "they go with the release"


@pytest.mark.parametrize(
    ("digest", "reason", "said"),
    [
        ("0123456789", "because", "DIGEST: '0123456789' must be the first 8 digits or more of one judged configuration"),
        ("short", "because", "first 8 digits"),
        ("pass", "because", "has passed: it needs no approval"),
        ("fail", "  ", "--reason: is empty"),
    ],
)
async def test_an_approval_of_nothing_is_refused(api: KubernetesApi, config: Path, digest: str, reason: str, said: str) -> None:
    given = {"pass": write_verdict(api), "fail": write_verdict(api), "short": GOOD.digest[:7]}.get(digest, digest)
    with pytest.raises(ConfigurationError, match=said):
        await run("approve", given, "--reason", reason, "--config", str(config))
    assert not [name for name in api.objects[CONFIG_MAPS] if "-approval-" in name]


async def test_it_is_approved_once_and_only_by_whom_may_write(api: KubernetesApi, config: Path) -> None:
    digest = write_verdict(api, outcome="fail", reason="matched.kl")
    words = ("approve", digest, "--reason", "known", "--config", str(config))
    api.forbidden = {"create configmaps"}
    with pytest.raises(ConfigurationError, match="cannot be written: the API server answered 403"):
        await run(*words)
    api.forbidden = set()
    assert (await run(*words))[0] == 0
    with pytest.raises(ConfigurationError, match="was approved by"):
        await run(*words)


async def test_verdicts_are_listed(api: KubernetesApi, config: Path) -> None:
    digest = write_verdict(api, outcome="fail", reason="matched.kl: 0.09")
    _, shown = await run("verdicts", "--config", str(config), "--api", api.url)
    assert digest[:16] in shown and "fail" in shown and "matched.kl: 0.09" in shown and "cpu-epyc" in shown
    _, text = await run("verdicts", "--json", "--config", str(config))
    assert json.loads(text)[digest]["verdict"]["outcome"] == "fail"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lease": {"seconds": 5}}, "two controllers could lead at once"),
        ({"runs_at_once": 0}, "runs_at_once"),
        ({"pool": {}}, "pool: Extra inputs are not permitted"),
        ({"namespace": "A_B"}, "namespace"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(yaml.safe_dump({"namespace": "serving", "name": "gate", **change}))
    with pytest.raises(ConfigurationError, match=said):
        load_gatekeeper_settings(path)


@pytest.fixture
def own_port(config: Path) -> int:
    """Where the process of `config` listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    data = yaml.safe_load(config.read_text()) | {"host": "127.0.0.1", "port": port, "pools": {"cpu": ["--matched", "/none"]}}
    config.write_text(yaml.safe_dump(data))
    return port


async def test_the_process_judges_and_ends_when_told_to(api: KubernetesApi, config: Path, own_port: int) -> None:
    """With the real judge, whose program is not there: the pod is told, and SIGTERM ends it with status 0."""
    program = "import sys; from serving.gatekeeper.commands import *; app = typer.Typer(); register(app); app()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "controller", "--config", str(config)), stdout=asyncio.subprocess.PIPE
    )
    try:
        add_gated(api, "a")
        await become(lambda: condition(api, "a") == ("False", "NotJudged"))
        assert "the gate ended with status" in api.objects[PODS]["a"]["status"]["conditions"][-1]["message"]
        assert (await ask(f"http://127.0.0.1:{own_port}", "/livez")).status == 200
        metrics = MetricValues((await ask(f"http://127.0.0.1:{own_port}", "/metrics")).body.decode())
        assert metrics.sum("serving_gate_runs_total", result="error") >= 1
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), HANG_SECONDS) == 0
    finally:
        if process.returncode is None:
            process.kill()
        printed, _ = await process.communicate()
    assert b"pod a: NotJudged" in printed
