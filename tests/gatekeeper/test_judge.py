"""The gate as a process: what its verdicts, failures and end mean to the controller."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import psutil
import pytest

from serving.gatekeeper.controller import JudgeFailed
from serving.gatekeeper.judge import ProcessJudge
from serving.gatekeeper.pods import GatedPod, gated_pod
from serving.gatekeeper.settings import GatekeeperSettings
from tests.doubles.kubernetes_api import PODS, KubernetesApi
from tests.doubles.settling import settled
from tests.gatekeeper.doubles import add_gated

FAKE = (sys.executable, "-m", "tests.gatekeeper.programs.fake_gate")


def pod() -> GatedPod:
    api = KubernetesApi()
    add_gated(api, "a", port=1234)
    found = gated_pod(api.objects[PODS]["a"])
    assert found is not None
    return found


def judge(mode: str, **fields: object) -> ProcessJudge:
    settings = GatekeeperSettings.model_validate({"namespace": "ns", "name": "gate", "pools": {"cpu": [mode]}, **fields})
    return ProcessJudge(settings, FAKE)


@pytest.mark.parametrize(("mode", "outcome"), [("pass", "pass"), ("fail", "fail"), ("undecided", "not_decided")])
async def test_a_verdict_is_what_it_printed(mode: str, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("new-secret\nold-secret\n")
    verdict = await judge(mode, engine_secret_file=tmp_path / "secret")(pod())
    assert verdict.outcome == outcome and verdict.digest == pod().digest
    assert json.loads(verdict.reason) == {"url": "http://127.0.0.1:1234", "secret": "new-secret"}


@pytest.mark.parametrize(
    ("mode", "said"),
    [("crash", "--matched: no such file"), ("chatter", "the gate's verdict"), ("pass", "say nothing about the pool")],
)
async def test_what_is_no_verdict_is_said(mode: str, said: str) -> None:
    fields = {"pools": {"other": ["pass"]}} if mode == "pass" else {}
    with pytest.raises(JudgeFailed, match=said):
        await judge(mode, **fields)(pod())


async def test_a_secret_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(JudgeFailed, match="engines' secret"):
        await judge("pass", engine_secret_file=tmp_path / "missing")(pod())


async def test_a_run_that_nobody_wants_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GATE_PID", str(tmp_path / "pid"))
    task = asyncio.create_task(judge("hang")(pod()))

    async def unborn() -> list[str]:
        return [] if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() else ["it has not begun"]

    await settled(unborn)
    number = int((tmp_path / "pid").read_text())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(number)
