"""Three whole releases, as they are rendered: what changes in them is seen in a review.

UPDATE_GOLDEN=1 python -m pytest tests/chart/test_golden.py        writes them anew
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doubles.tools import Helm, pod_templates

pytestmark = pytest.mark.chart
FOLDER = Path(__file__).with_name("golden")
RELEASES = ("mixed", "air-gapped", "simulated")
FILES = ("-engine-files", *(f"-dashboard-{name}" for name in ("overview", "targets", "routing", "tenants", "engines")))
"""ConfigMaps that hold whole files, which have tests of their own."""


def shown(objects: list[dict[str, Any]]) -> str:
    for each in objects:
        if each["kind"] == "ConfigMap" and each["metadata"]["name"].endswith(FILES):
            each["data"] = dict.fromkeys(each["data"], "(a file of the chart)")
        if each["kind"] == "PrometheusRule":
            each["spec"]["groups"] = [group["name"] for group in each["spec"]["groups"]]
        if each["kind"] == "Pod":
            each["spec"]["containers"][0]["args"][0] = "(a file of the chart)"
        for template in pod_templates(each):
            for name in (template["metadata"].get("annotations") or {}).keys() & {"checksum/files", "checksum/settings"}:
                template["metadata"]["annotations"][name] = "(a checksum)"
    objects.sort(key=lambda each: (each["kind"], each["metadata"]["name"]))
    return yaml.safe_dump_all(objects, sort_keys=True, width=150, allow_unicode=True)


@pytest.mark.parametrize("release", RELEASES)
def test_a_whole_release_is_as_it_was(helm: Helm, release: str) -> None:
    values = yaml.safe_load((FOLDER / f"{release}.values.yaml").read_text())
    text = shown(helm.template(values, release="llm", namespace="serving"))
    path = FOLDER / f"{release}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "look at the difference; UPDATE_GOLDEN=1 writes it anew"


def test_an_air_gapped_site_names_no_other_place() -> None:
    text = (FOLDER / "air-gapped.yaml").read_text()
    for place in ("docker.io", "huggingface.co", "0.0.0.0/0"):
        assert place not in text
    images = {line.split("image: ")[1] for line in text.splitlines() if " image: " in line}
    assert images and all(image.startswith("registry.site.example/serving/") for image in images)
