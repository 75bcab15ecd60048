"""What needs definitions of other projects: where they are, the API server takes what is rendered; elsewhere Helm says what is
missing and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.conftest import COMMIT
from tests.cluster.conftest import Kubectl
from tests.cluster.test_release import CPU, MANAGED, eventually
from tests.doubles.tools import CHART, Helm, Refused

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
GROUPS: dict[str, Any] = {"pools": [{"name": "h100", "profile": "deepseek-r1-fp8-h100", "revision": COMMIT, "replicas": 2}]}
SCALED: dict[str, Any] = {
    "pools": [{**CPU, "autoscaling": {"minReplicas": 0, "maxReplicas": 2}}],
    "autoscaling": {"prometheus": {"address": "http://prometheus.monitoring.svc:9090"}},
}


@pytest.mark.parametrize(
    ("values", "group", "kind", "name"),
    [
        (GROUPS, "leaderworkerset.x-k8s.io", "LeaderWorkerSet", "x-serving-h100"),
        (SCALED, "keda.sh", "ScaledObject", "x-serving-cpu"),
    ],
)
def test_a_custom_resource(kubectl: Kubectl, helm: Helm, values: dict[str, Any], group: str, kind: str, name: str) -> None:
    place = ("--namespace", kubectl.namespace)
    before = kubectl.everything()
    if group not in kubectl.run("api-versions"):
        with pytest.raises(Refused, match=f'no matches for kind "{kind}"'):
            helm.run("install", "x", str(CHART), *place, values=values)
    else:
        resource = f"{kind.lower()}s.{group}"
        for verb, seed in (("install", "1"), ("upgrade", "2")):
            pools = [{**pool, "extraArguments": ["--seed", seed]} for pool in values["pools"]]
            helm.run(verb, "x", str(CHART), *place, values={**values, "pools": pools})
            assert [each["metadata"]["name"] for each in kubectl.items(resource, "--selector", MANAGED)] == [name]
    if "x" in helm.run("list", "--short", *place).split():
        helm.run("uninstall", "x", *place)
    eventually(lambda: sorted(kubectl.everything() - before))
