"""Selectors hold for any release's name: they meet what they mean, and nothing of another release."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.conftest import EVERYTHING_ON
from tests.doubles.tools import Helm, Refused, pod_templates

pytestmark = pytest.mark.chart
POOLS = [{"name": "a", "profile": "smollm2-135m-cpu"}, {"name": "a-name-of-22-characters"[:22], "profile": "smollm2-135m-cpu"}]
VALUES: dict[str, Any] = {"pools": POOLS, "monitoring": EVERYTHING_ON}
LONG = "a-release-whose-name-has-the-most-characters"
RELEASES = ["x", "serving", "a.b", f"{LONG}-is-53-a", f"{LONG}-is-53-b"]


MAKERS = ("Deployment", "LeaderWorkerSet", "Pod")


def labels(each: dict[str, Any]) -> dict[str, str]:
    """Of the pods that a workload makes, the first kind of them."""
    return dict(pod_templates(each)[0]["metadata"]["labels"])


def selectors(objects: list[dict[str, Any]]) -> list[tuple[str, dict[str, str], set[str]]]:
    """What selects pods: its name, the labels, and the ports that it needs there."""
    found = []
    for each in objects:
        name, spec = f"{each['kind']} {each['metadata']['name']}", each.get("spec", {})
        if each["kind"] == "Service":
            found.append((name, spec["selector"], {port["targetPort"] for port in spec["ports"]}))
        elif each["kind"] == "PodMonitor":
            found.append((name, spec["selector"]["matchLabels"], {end["port"] for end in spec["podMetricsEndpoints"]}))
        elif each["kind"] in ("Deployment", "PodDisruptionBudget"):
            found.append((name, spec["selector"]["matchLabels"], set()))
    return found


def met(selector: dict[str, str], objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] in MAKERS and selector.items() <= labels(each).items()]


@pytest.mark.parametrize("release", RELEASES)
def test_every_selector_meets_what_it_means(helm: Helm, release: str) -> None:
    objects = helm.template(VALUES, release=release, namespace="elsewhere")
    others = helm.template(VALUES, release="another", namespace="elsewhere")
    found = selectors(objects)
    assert len(found) == 4 + 2 + 3 + 3, "Services, monitors, Deployments, budgets"
    for name, selector, ports in found:
        pods = met(selector, objects)
        assert len(pods) == (2 if name.startswith("PodMonitor") and name.endswith("-engines") else 1), name
        assert met(selector, others) == [], name
        for pod in pods:
            assert ports <= {port["name"] for port in pod["spec"]["template"]["spec"]["containers"][0]["ports"]}, name
    assert all(each["metadata"]["namespace"] == "elsewhere" for each in objects)


@pytest.mark.parametrize("release", RELEASES)
def test_names_are_short_and_distinct(helm: Helm, release: str) -> None:
    objects = helm.template(VALUES, release=release)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 and "." not in name for _, name in names)
    for each in objects:
        for value in {**each["metadata"]["labels"], **(labels(each) if each["kind"] in MAKERS else {})}.values():
            assert len(value) <= 63


def test_two_long_releases_do_not_meet(helm_4: Helm) -> None:
    one, two = ({each["metadata"]["name"] for each in helm_4.template(VALUES, release=name)} for name in RELEASES[-2:])
    assert one & two == set()


def test_a_name_that_no_service_may_have(helm_4: Helm) -> None:
    with pytest.raises(Refused, match="begins with a digit"):
        helm_4.template(release="1st")
    assert helm_4.template({"fullnameOverride": "first"}, release="1st")
