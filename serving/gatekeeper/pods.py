"""What a pod says about the engine in it: its configuration, whether it can be asked, and what its readiness gate says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from serving.fleet.mirror import Document
from serving.gate.digest import Configuration

CONDITION = "serving/quality"
"""The type of the readiness gate and of its condition."""
POOL_LABEL, TARGET_LABEL = "serving/pool", "serving/target"
CHECKPOINT = "serving/checkpoint"
"""The annotation that names the weights, since no field of a pod does."""
_UNKNOWN = "unknown"
_IMAGE_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SECRET_VARIABLE = re.compile(r"(SECRET|TOKEN|PASSWORD|API_KEY)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Condition:
    """Of a pod; its times are not kept, so that two that say the same are equal."""

    status: str
    """True, False or Unknown."""
    reason: str
    message: str


@dataclass(frozen=True)
class GatedPod:
    name: str
    uid: str
    pool: str
    address: str
    """Empty before it has one."""
    port: int
    started: bool
    """Its containers say that they are ready: it can be asked."""
    leaving: bool
    configuration: Configuration
    condition: Condition | None

    @cached_property
    def digest(self) -> str:
        return self.configuration.digest

    @property
    def url(self) -> str:
        return f"http://[{self.address}]:{self.port}" if ":" in self.address else f"http://{self.address}:{self.port}"


def gated_pod(document: Document) -> GatedPod | None:
    """None: the pod has no readiness gate of ours, or makes no sense."""
    metadata, spec, status = (_dict(document, key) for key in ("metadata", "spec", "status"))
    gates = [gate.get("conditionType") for gate in _dicts(spec.get("readinessGates"))]
    engine = next((each for each in _dicts(spec.get("containers")) if each.get("name") == "engine"), None)
    name, uid = metadata.get("name"), metadata.get("uid")
    if CONDITION not in gates or engine is None or not isinstance(name, str) or not isinstance(uid, str):
        return None
    labels, annotations = _dict(metadata, "labels"), _dict(metadata, "annotations")
    conditions: Document = {_text(each, "type"): each for each in _dicts(status.get("conditions"))}
    port = next((p.get("containerPort") for p in _dicts(engine.get("ports")) if p.get("name") == "http"), 8000)
    is_over = status.get("phase") in ("Succeeded", "Failed")
    return GatedPod(
        name=name,
        uid=uid,
        pool=_text(labels, POOL_LABEL),
        address=_text(status, "podIP"),
        port=port if isinstance(port, int) else 8000,
        started=_dict(conditions, "ContainersReady").get("status") == "True",
        leaving=metadata.get("deletionTimestamp") is not None or is_over,
        configuration=Configuration(
            image=_image(_text(engine, "image"), _dicts(status.get("containerStatuses"))) or _UNKNOWN,
            checkpoint=_text(annotations, CHECKPOINT) or _UNKNOWN,
            argv=tuple(word for key in ("command", "args") for word in _texts(engine.get(key))),
            target=_text(labels, TARGET_LABEL) or _UNKNOWN,
            environment=_environment(_dicts(engine.get("env"))),
        ),
        condition=_condition(conditions.get(CONDITION)),
    )


def _condition(found: Document | None) -> Condition | None:
    if found is None:
        return None
    return Condition(_text(found, "status"), _text(found, "reason"), _text(found, "message"))


def _image(named: str, statuses: Iterable[Document]) -> str:
    """With the digest that the node pulled, where the name is a tag, which may be another image tomorrow."""
    if "@" in named:
        return named
    pulled = next((_text(each, "imageID") for each in statuses if each.get("name") == "engine"), "")
    digest = _IMAGE_DIGEST.search(pulled)
    return f"{named}@{digest[0]}" if digest else named


def _environment(variables: Iterable[Document]) -> dict[str, str]:
    """What is written down in the pod; what comes from elsewhere differs from pod to pod, and secrets are nobody's business."""
    return {
        name: _text(each, "value")
        for each in variables
        if "valueFrom" not in each and (name := _text(each, "name")) and not _SECRET_VARIABLE.search(name)
    }


def _dict(document: Document, key: str) -> Document:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[Document]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _text(document: Document, key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""
