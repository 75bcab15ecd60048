"""A verdict that tests change."""

from __future__ import annotations

from serving.gate.digest import Configuration
from serving.gate.verdict import Cost, Finding, Verdict

CONFIGURATION = Configuration(image="vllm 0.32.0", checkpoint="sha256:1", argv=("vllm", "serve"), target="cpu-epyc")
GOOD = Verdict(
    outcome="pass",
    reason="all tests passed",
    digest=CONFIGURATION.digest,
    configuration=CONFIGURATION,
    calibrated=True,
    findings=(Finding(name="matched.kl", outcome="pass", said="KL 0.001", value=0.001, pass_limit=0.002, fail_limit=0.003),),
    sees=("one wrong scale",),
    blind=("long context",),
    created="2026-11-30T20:15:00Z",
    gate_version="0.1.0",
    rules="default@1",
    corpus="0" * 64,
    cost=Cost(requests=3),
)
