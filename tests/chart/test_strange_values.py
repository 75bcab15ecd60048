"""Values that are right by themselves and wrong together, and names that YAML reads as something else than text."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.chart.conftest import EVERYTHING_ON
from tests.chart.test_kinds import CUSTOM, NEWEST, check
from tests.doubles.tools import CHART, Helm, Refused, only

pytestmark = pytest.mark.chart
POOL = {"name": "cpu", "profile": "smollm2-135m-cpu"}
ONE_NODE = {"claim": {"name": "m", "accessMode": "ReadWriteOnce"}}
GATE = {"arguments": ["--matched", "/reports/m.json"]}


class AsHelmReads(yaml.SafeLoader):
    """YAML 1.1 as Go's library has it, for which the bare words y and n are booleans, too."""


AsHelmReads.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:y|Y|n|N)$"), list("yYnN"))
AsHelmReads.add_constructor("tag:yaml.org,2002:bool", lambda loader, node: node.value.lower() in ("y", "yes", "true", "on"))

NUMBERS: dict[str, Any] = {
    "fullnameOverride": "on",
    "global": {"imagePullSecrets": ["1"]},
    "pools": [
        {
            **POOL,
            "name": name,
            "weights": {"claim": {"name": "1", "accessMode": "ReadWriteMany", "folder": "1"}},
            "fetch": False,
            "compiled": {"claim": {"name": "2", "accessMode": "ReadWriteMany"}},
            "environment": {"NO": "1"},
            "priorityClassName": "1",
            "runtimeClassName": "1",
            "replicas": 2,
            "gate": {**GATE, "probes": "1"},
        }
        for name in ("on", "1", "null")
    ],
    "engineSecret": {"existingSecret": "1"},
    "serviceAccount": {"name": "1"},
    "engineServiceAccount": {"name": "2"},
    "gateway": {
        "apiKey": {"existingSecret": "1", "key": "1"},
        "database": {"existingSecret": "1", "key": "1"},
        "keys": {"existingSecret": "1", "secretKey": "1", "fileKey": "1"},
        "limitStore": {"existingSecret": "1", "key": "1"},
        "peers": {"existingSecret": "1", "key": "1"},
        "priorityClassName": "1",
        "ingress": {"enabled": True, "host": "1", "className": "1", "tlsSecret": "1"},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "1"}], "hostnames": ["1"]},
    },
    "gate": {"reportsClaim": "1"},
    "monitoring": EVERYTHING_ON,
}


@pytest.mark.parametrize("release", ["y", "null", "123"])
def test_names_stay_text(helm_4: Helm, release: str) -> None:
    """A release called y, a pool called 1, a Secret called 1: unquoted they are no strings, and the API server refuses them."""
    text = helm_4.run("template", release, str(CHART), "--namespace", "123", values=NUMBERS)
    objects = [each for each in yaml.load_all(text, Loader=AsHelmReads) if each]
    assert len(objects) > 20
    for each in objects:
        if each["kind"] in CUSTOM:
            check(each)
        else:
            kubernetes_validate.validate(each, NEWEST, strict=True)
        for value in (each["metadata"]["name"], each["metadata"]["namespace"], *each["metadata"]["labels"].values()):
            assert isinstance(value, str), (each["kind"], each["metadata"])
    settings = yaml.load(only(objects, "ConfigMap", "on-gateway")["data"]["gateway.yaml"], Loader=AsHelmReads)
    assert [pool["name"] for pool in settings["pools"]] == ["on", "1", "null"]


@pytest.mark.parametrize("name", ["gateway", "gate", "peers", "test"])
def test_a_pool_has_no_name_of_the_charts_own_objects(helm: Helm, name: str) -> None:
    with pytest.raises(Refused, match=f'pools: the name "{name}" is the chart\'s own'):
        helm.template({"pools": [{**POOL, "name": name}]})


def test_the_names_of_the_chart_are_all_of_them(helm_4: Helm) -> None:
    """No object of a release with everything on has the name that another pool's object of the same kind would have."""
    values = {**NUMBERS, "fullnameOverride": "", "pools": [{**POOL, "name": "a", "replicas": 2, "gate": GATE}]}
    objects = helm_4.template(values)
    kinds = {each["kind"] for each in objects if each["metadata"]["name"] == "x-serving-a"}
    suffixes = {each["metadata"]["name"].removeprefix("x-serving-") for each in objects if each["kind"] in kinds}
    assert suffixes - {"a", "x-serving"} == {"gateway", "gate", "peers", "test"}


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"nameOverride": "My_Name"}, "nameOverride"),
        ({"pools": [{**POOL, "weights": {"node": {"path": "/a/../b"}}}]}, "pools.0.weights.node.path"),
        ({"pools": [{**POOL, "weights": {"node": {"path": "/a//b"}}}]}, "pools.0.weights.node.path"),
        (
            {"pools": [{**POOL, "weights": {"claim": {**ONE_NODE["claim"], "folder": "a/../../b"}}, "fetch": False}]},
            "pools.0.weights.claim.folder",
        ),
        ({"gateway": {"settings": {"targets": {"rocm-mi300x": {"dollars": 1}}}}}, "gateway.settings.targets.rocm-mi300x"),
    ],
)
def test_the_schema_refuses_what_kubernetes_would(helm: Helm, values: dict[str, Any], path: str) -> None:
    with pytest.raises(Refused) as refused:
        helm.template(values)
    assert (path if helm.name == "helm-3" else "/" + path.replace(".", "/")) in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"pools": [{**POOL, "weights": ONE_NODE}, {**POOL, "name": "b", "weights": ONE_NODE}]},
            "pools: b: weights.claim: m is ReadWriteOnce, which one node can mount, and the pool cpu has it, too; take a",
        ),
        (
            {"pools": [{**POOL, "weights": ONE_NODE, "gate": {**GATE, "spareNode": True}}]},
            "pools: cpu: weights.claim: m is ReadWriteOnce, which one node can mount, and the pool has up to 2 pods",
        ),
        ({"pools": [{**POOL, "extraArguments": ["--tensor-par", "3"]}]}, "extraArguments: --tensor-par is the profile's"),
        ({"pools": [{**POOL, "extraArguments": ["--nnode=2"]}]}, "extraArguments: --nnode is the profile's"),
        ({"pools": [{**POOL, "extraArguments": ["--config", "/x"]}]}, "extraArguments: --config is the profile's"),
        ({"pools": [{**POOL, "extraArguments": ["-pcp", "2"]}]}, "extraArguments: -pcp is the profile's"),
        (
            {"pools": [{**POOL, "engine": "sim", "replicas": 2, "gate": GATE}]},
            "pools: cpu: gate: a simulated engine answers with made-up words",
        ),
        (
            {"hub": {"endpoint": "http://hub.test:8080/x"}},
            "networkPolicy.hub.ports: lacks 8080, which hub.endpoint needs; set it to [8080]",
        ),
        ({"hub": {"endpoint": "http://hub.test"}}, "networkPolicy.hub.ports: lacks 80, which hub.endpoint needs"),
        (
            {"gateway": {"settings": {"tracing": {"endpoint": "http://c:4317/v1/traces"}}}},
            "networkPolicy.traces.ports: lacks 4317, which gateway.settings.tracing.endpoint needs",
        ),
        (
            {"gateway": {"settings": {"routing": {"pools": {"cpuu": {"sequences": 3}}}}}},
            'gateway.settings.routing.pools.cpuu: there is no pool "cpuu"; there are: cpu',
        ),
        (
            {"gateway": {"settings": {"prices": {"pools": {"gpu": {"prompt": 1}}}}}},
            'gateway.settings.prices.pools.gpu: there is no pool "gpu"; there are: cpu',
        ),
        (
            {"gateway": {"settings": {"prices": {"models": {"glm": {"prompt": 1}}}}}},
            'gateway.settings.prices.models.glm: there is no model "glm"; there are: smollm2-135m-instruct',
        ),
        (
            {"gateway": {"settings": {"tenants": {"red": {"models": ["nope"]}}}}},
            'gateway.settings.tenants.red.models.0: there is no model "nope"; there are: smollm2-135m-instruct',
        ),
        (
            {"gateway": {"settings": {"tenants": {"red": {}}, "auth": {"keys": [{"tenant": "blue", "sha256": "a" * 64}]}}}},
            'gateway.settings.auth.keys.0.tenant: there is no tenant "blue"; there are: default, red',
        ),
        (
            {"gateway": {"settings": {"models": {"gpt": {"alias_of": "smol"}}}}},
            'gateway.settings.models.gpt.alias_of: there is no model "smol"; there are: gpt, smollm2-135m-instruct',
        ),
        (
            {"gateway": {"settings": {"models": {"gpt": {"fallbacks": ["smollm2-135m-instruct", "smol"]}}}}},
            'gateway.settings.models.gpt.fallbacks.1: there is no model "smol"',
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(helm: Helm, values: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=re.escape(message)):
        helm.template(values)


def test_what_does_fit_together_is_taken(helm: Helm) -> None:
    """The same claim for both of a pool, flags that only begin as others do, names that are models by the settings alone."""
    whole = {**POOL, "weights": ONE_NODE, "compiled": ONE_NODE, "extraArguments": ["--model-impl", "auto", "--max-num-seqs=8"]}
    settings = {
        "models": {"gpt": {"alias_of": "smollm2-135m-instruct"}, "old": {"fallbacks": ["gpt"]}},
        "tenants": {"red": {"models": ["gpt", "old"]}},
        "auth": {"keys": [{"tenant": "red", "sha256": "a" * 64}]},
        "targets": {"cpu-epyc": {"dollars_per_accelerator_hour": 0.5}},
    }
    hub = {"hub": {"endpoint": "http://hub.test:8080"}, "networkPolicy": {"hub": {"ports": [443, 8080]}}}
    helm.template({"pools": [whole], "gateway": {"settings": settings}, **hub})
    helm.template({"hub": {"endpoint": "http://hub.test:8080"}, "networkPolicy": {"enabled": False}})
