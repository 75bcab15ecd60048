"""What ConfigMaps say, and what pods say, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from serving.gatekeeper.pods import CONDITION, gated_pod
from serving.gatekeeper.records import Approval, Kept, config_map, kept
from serving.gatekeeper.standing import Standing, Standings, condition_of
from tests.gate.verdicts import GOOD

APPROVAL = Approval(digest=GOOD.digest, reason="known", by="ann", at="2026-11-30T20:15:00Z", said="fail: matched.kl")
FAILED = GOOD.model_copy(update={"outcome": "fail", "reason": "matched.kl", "created": "2026-11-30T21:00:00Z"})


@pytest.mark.parametrize("record", [GOOD, APPROVAL], ids=["verdict", "approval"])
def test_a_record_is_read_as_it_was_written(record: Any) -> None:
    found = kept(config_map("llm-gate", "cpu", record))
    assert found is not None and found.record == record and found.pool == "cpu"


@pytest.mark.parametrize("record", [GOOD, APPROVAL], ids=["verdict", "approval"])
@pytest.mark.parametrize("change", ["name", "label", "data"])
def test_what_contradicts_itself_counts_as_none(record: Any, change: str) -> None:
    document = config_map("llm-gate", "cpu", record)
    if change == "name":
        document["metadata"]["name"] = document["metadata"]["name"][:-4] + "0000"
    elif change == "label":
        document["metadata"]["labels"]["serving/gate-record"] = "wish"
    else:
        document["data"] = {name: text.replace('"digest"', '"digist"') for name, text in document["data"].items()}
    assert kept(document) is None


def test_the_newest_verdict_counts_whatever_the_order() -> None:
    records = [Kept("a", "cpu", GOOD), Kept("b", "cpu", FAILED)]
    for order in (records, records[::-1]):
        standing = Standings.of(order).by_digest[GOOD.digest]
        assert standing.verdict == FAILED


@pytest.mark.parametrize(
    ("standing", "wanted"),
    [
        (None, None),
        (Standing(), None),
        (Standing(verdict=GOOD), ("True", "Passed")),
        (Standing(verdict=FAILED), ("False", "Failed")),
        (Standing(verdict=FAILED, approval=APPROVAL), ("True", "Approved")),
        (Standing(approval=APPROVAL), ("True", "Approved")),
        (Standing(verdict=GOOD.model_copy(update={"outcome": "not_decided"})), ("False", "NotDecided")),
        (Standing(verdict=GOOD.model_copy(update={"outcome": "not_decided", "calibrated": False})), ("False", "NeedsApproval")),
    ],
)
def test_what_a_pod_is_told(standing: Standing | None, wanted: tuple[str, str] | None) -> None:
    found = condition_of(standing, GOOD.digest)
    assert (found and (found.status, found.reason)) == wanted
    assert found is None or GOOD.digest[:16] in found.message


def test_a_long_reason_leaves_room_for_what_to_do() -> None:
    verdict = GOOD.model_copy(update={"outcome": "not_decided", "calibrated": False, "reason": "x" * 5000})
    found = condition_of(Standing(verdict=verdict), GOOD.digest)
    assert found is not None and len(found.message) <= 1000 and found.message.endswith("--reason …")


def pod(**changes: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "uid": "1", "labels": {"serving/target": "cpu", "serving/pool": "p"}},
        "spec": {
            "readinessGates": [{"conditionType": CONDITION}],
            "containers": [{"name": "engine", "image": "vllm:v1", "command": ["vllm"], "env": changes.get("env", [])}],
        },
        "status": {"podIP": changes.get("address", "10.0.0.1"), "containerStatuses": changes.get("statuses", [])},
    }


def test_an_image_by_tag_counts_with_what_the_node_pulled() -> None:
    statuses = [{"name": "engine", "imageID": "docker.io/vllm@sha256:" + "a" * 64}]
    found, unknown = gated_pod(pod(statuses=statuses)), gated_pod(pod(statuses=[{"name": "engine", "imageID": "made-up"}]))
    assert found is not None and found.configuration.image == "vllm:v1@sha256:" + "a" * 64
    assert unknown is not None and unknown.configuration.image == "vllm:v1" and unknown.digest != found.digest


def test_secrets_and_what_differs_from_pod_to_pod_are_not_written_down() -> None:
    env = [
        {"name": "VLLM_X", "value": "1"},
        {"name": "HF_TOKEN", "value": "hf_s3cret"},
        {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
    ]
    found = gated_pod(pod(env=env))
    assert found is not None and found.configuration.environment == {"VLLM_X": "1"}


def test_an_address_of_the_newer_family_is_bracketed() -> None:
    found = gated_pod(pod(address="fd00::1"))
    assert found is not None and found.url == "http://[fd00::1]:8000"


@pytest.mark.parametrize("spoiled", ["metadata", "spec", "status", "containers", "gates"])
def test_a_pod_that_makes_no_sense_is_none(spoiled: str) -> None:
    document = pod()
    if spoiled == "containers":
        document["spec"]["containers"] = [{"name": "other"}]
    elif spoiled == "gates":
        document["spec"]["readinessGates"] = [1, {"conditionType": "other"}]
    else:
        document[spoiled] = 7
    found = gated_pod(document)
    assert found is None or (spoiled == "status" and not found.started and found.address == "")
