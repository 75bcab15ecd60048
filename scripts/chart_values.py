"""The chart's values as types: what values.schema.json and the tables of the chart's README are made of.

Field names are those of values.yaml. Everything is closed but what Kubernetes itself checks (`Free`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1)]
Texts = dict[str, str]
Free = Annotated[dict[str, Any], Field(description="As Kubernetes has it; the cluster checks it")]
Port = Annotated[int, Field(ge=1, le=65535)]
AtLeastOne = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Duration = Annotated[str, Field(pattern="^([0-9]+(ms|s|m|h))+$")]
Digest = Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64})?$")]
Quantity = (
    Annotated[int, Field(ge=0)]
    | Annotated[float, Field(ge=0)]
    | Annotated[str, Field(pattern="^[0-9]+([.][0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]
)
Id = Annotated[int, Field(ge=0, le=2**31 - 1)] | None
ObjectName = Annotated[str, Field(pattern="^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
PATH_PART = "[^/:]*[^/:.][^/:]*"
"""Of a path: neither empty nor made of dots."""
Folder = Annotated[str, Field(pattern=f"^{PATH_PART}(/{PATH_PART})*$")]
Variable = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Global(Closed):
    imageRegistry: str
    imagePullSecrets: list[Text]
    imageVariant: Literal["official", "hardened"]


class OwnImage(Closed):
    registry: str
    repository: Text
    tag: str
    digest: Digest
    pullPolicy: Literal["Always", "IfNotPresent", "Never"]


class EngineImage(Closed):
    registry: str
    repository: Text
    tag: Text
    digest: Digest
    variant: Literal["official", "hardened"]


class Resources(Closed):
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]


class Toleration(Closed):
    key: str
    operator: Literal["Exists", "Equal"]
    value: str
    effect: Literal["NoSchedule", "NoExecute", "PreferNoSchedule"]
    tolerationSeconds: int


class OfThePod(Closed):
    pass


class NodeFolder(Closed):
    path: Annotated[str, Field(pattern=f"^(/{PATH_PART})+$")]
    """A folder of each node that is there already and that group 0 or user 2000 may write."""
    folder: Folder


class Claim(Closed):
    name: ObjectName
    accessMode: Literal["ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany"]
    """Said here, too, since a chart that is rendered without a cluster cannot look."""
    folder: Folder


class Place(Closed):
    """Exactly one of these."""

    pod: OfThePod
    node: NodeFolder
    claim: Claim


class PoolScaling(Closed):
    minReplicas: NotNegative
    maxReplicas: AtLeastOne
    requestsPerReplica: AtLeastOne
    """Requests that want one engine; left out: the profile's max-num-seqs."""


class PoolGate(Closed):
    """What a new engine of the pool must pass before it gets requests."""

    arguments: list[Text]
    """Words for `serving gate run` behind the engine's address: its references, as files below /reports or addresses."""
    spareNode: bool
    """There is a free node (or its free devices) for one more engine: the new one comes before an old one goes."""
    allowOutage: bool
    """Of a pool with one engine: while the new one is judged, and after it failed, none serves."""
    probes: ObjectName
    """A ConfigMap whose key probes.json holds the known answers (`serving gate probes`) that gateways watch the pool by."""


class Pool(Closed):
    name: Annotated[str, Field(pattern="^[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?$")]
    """At most 22 characters, since it is part of names."""
    profile: Text
    """A file of files/profiles/, without .json."""
    replicas: NotNegative
    """Engines; 1 where it is left out. Not together with autoscaling."""
    engine: Literal["vllm", "sim"]
    """sim: the profile's simulator in the gateway's image, on any node; what only vLLM needs is passed over."""
    image: EngineImage
    """Parts of the image's reference. Another repository or tag loses the profile's digest."""
    resources: Resources
    """Whole in place of the profile's; the number of devices must stay."""
    nodeSelector: Texts
    """Whole in place of the profile's; {}: any node."""
    tolerations: list[Toleration]
    """Whole in place of the profile's."""
    affinity: Free
    topologySpreadConstraints: list[Free]
    """As Kubernetes has them."""
    groupTopologyKey: str
    """Of engines on several nodes: a node label whose value all nodes of one engine share, and no two engines."""
    priorityClassName: str
    """A PriorityClass of the cluster."""
    runtimeClassName: str
    """A RuntimeClass of the cluster."""
    supplementalGroups: list[Annotated[int, Field(ge=1, le=2**31 - 1)]]
    """Group ids that open device files; whole in place of the profile's."""
    sharedMemory: Annotated[str, Field(pattern="^[0-9]+(Ki|Mi|Gi)$")]
    """Size of /dev/shm, which counts as memory."""
    environment: dict[Variable, str]
    """Added to the profile's variables, one by one."""
    extraArguments: list[Text]
    """Words behind the profile's command line; not those of its parallelism or of the chart's wiring."""
    weights: Place
    """Where the weights are fetched to; the default pod is a download for each new pod."""
    compiled: Place
    """Where the engine keeps what it compiles, in a folder for each image; the default pod is lost with the pod."""
    revision: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    """The commit of the hub's repository; needed where the catalog pins none. Files are checked against the hub's digests."""
    fetch: bool
    """false: weights.node or weights.claim holds the model in its root or its `folder`, and nothing is downloaded."""
    startupSeconds: Annotated[int, Field(ge=600, le=86_400)]
    """How long the engine may take to load before it is killed; left out: computed from the weights' size."""
    drainSeconds: Annotated[int, Field(ge=0, le=86_400)]
    """How long running requests may go on after a stop; left out: the profile's."""
    terminationGracePeriodSeconds: Annotated[int, Field(ge=1, le=90_000)]
    """Left out: computed from the drain time; a shorter one is refused."""
    maxUnavailable: AtLeastOne
    """Engines that an upgrade or drained nodes may take away at once; 1 where it is left out."""
    autoscaling: PoolScaling
    """Replicas by demand, with KEDA; from and to none where minReplicas is 0."""
    gate: PoolGate
    """Engines are ready only when the gate's controller has judged their configuration; left out: no gate."""
    podAnnotations: Texts
    """More annotations for the engines' pods."""


class Hub(Closed):
    endpoint: Annotated[str, Field(pattern="^(https?://.+)?$")]
    existingSecret: str
    key: Text


class EngineSecret(Closed):
    existingSecret: str


class Security(Closed):
    runAsUser: Annotated[int, Field(ge=1, le=2**31 - 1)] | None
    runAsGroup: Id
    fsGroup: Id


class ApiKey(Closed):
    existingSecret: str
    key: Text


class Database(Closed):
    existingSecret: str
    key: Text
    spillSize: Quantity


class Keys(Closed):
    existingSecret: str
    secretKey: Text
    fileKey: str


class LimitStore(Closed):
    existingSecret: str
    key: Text


class Service(Closed):
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"]
    port: Port
    annotations: Texts


class GatewayScaling(Closed):
    by: Literal["none", "hpa", "keda"]
    minReplicas: AtLeastOne
    maxReplicas: AtLeastOne
    cpuPercent: Annotated[int, Field(ge=1, le=100)]
    requestsPerReplica: AtLeastOne


class Ingress(Closed):
    enabled: bool
    className: str
    host: str
    tlsSecret: str
    annotations: Texts


class ParentRef(Closed):
    group: str
    kind: str
    name: Text
    namespace: str
    sectionName: str
    port: Port


class HttpRoute(Closed):
    enabled: bool
    parentRefs: list[ParentRef]
    hostnames: list[Text]
    annotations: Texts


class Peers(Closed):
    enabled: bool
    existingSecret: str
    key: Text


class Gateway(Closed):
    replicas: NotNegative
    image: OwnImage
    resources: Resources
    nodeSelector: Texts
    tolerations: list[Toleration]
    affinity: Free
    priorityClassName: str
    podAnnotations: Texts
    apiKey: ApiKey
    discovery: Literal["kubernetes", "dns"]
    database: Database
    keys: Keys
    limitStore: LimitStore
    peers: Peers
    settings: dict[str, Any]
    service: Service
    drainDelaySeconds: Annotated[int, Field(ge=0, le=600)]
    shutdownGraceSeconds: Annotated[int, Field(ge=1, le=86_400)]
    autoscaling: GatewayScaling
    maxUnavailable: AtLeastOne
    ingress: Ingress
    httpRoute: HttpRoute


class PrometheusServer(Closed):
    address: Annotated[str, Field(pattern="^(https?://.+)?$")]
    authenticationRef: str
    authModes: str


class Autoscaling(Closed):
    prometheus: PrometheusServer
    pollingSeconds: AtLeastOne
    refusedSeconds: Annotated[int, Field(ge=30, le=3600)]


class Gate(Closed):
    eject: bool
    replicas: AtLeastOne
    reportsClaim: str
    runSeconds: Annotated[int, Field(ge=60, le=86_400)]
    resources: Resources
    nodeSelector: Texts
    tolerations: list[Toleration]


class Reach(Closed):
    to: list[Free]
    ports: Annotated[list[Port], Field(min_length=1)]


class NetworkPolicy(Closed):
    enabled: bool
    clients: list[Free]
    scrapers: list[Free]
    hub: Reach
    apiServer: Reach
    database: Reach
    limitStore: Reach
    traces: Reach
    gatewayEgress: list[Free]
    gateEgress: list[Free]


class Account(Closed):
    create: bool
    name: str
    annotations: Texts


class Rbac(Closed):
    create: bool


class PodMonitor(Closed):
    enabled: bool
    labels: Texts
    interval: Duration


class Rules(Closed):
    enabled: bool
    labels: Texts
    runbooks: Annotated[str, Field(pattern='^[^\\s"]+$')]
    grafana: Annotated[str, Field(pattern='^(https?://[^\\s"]+)?$')]


class Dashboard(Closed):
    enabled: bool
    labels: Texts
    annotations: Texts


class Monitoring(Closed):
    podMonitor: PodMonitor
    rules: Rules
    dashboard: Dashboard


class Values(Closed):
    global_: Annotated[Global, Field(alias="global")]
    nameOverride: Annotated[str, Field(pattern="^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$")]
    fullnameOverride: Annotated[str, Field(pattern="^([a-z]([a-z0-9-]*[a-z0-9])?)?$")]
    pools: list[Pool]
    hub: Hub
    engineSecret: EngineSecret
    security: Security
    gateway: Gateway
    autoscaling: Autoscaling
    gate: Gate
    networkPolicy: NetworkPolicy
    serviceAccount: Account
    engineServiceAccount: Account
    rbac: Rbac
    monitoring: Monitoring


REQUIRED = {"Pool": ["name", "profile"], "NodeFolder": ["path"], "Claim": ["name", "accessMode"], "ParentRef": ["name"]}
"""All else has a default in values.yaml, or may be left out."""
REQUIRED["PoolScaling"] = ["minReplicas", "maxReplicas"]
REQUIRED["PoolGate"] = ["arguments"]


def values_schema(settings: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema (draft 7) of values.yaml; `settings` are the definitions of the gateway's settings, `Settings` first."""
    schema = Values.model_json_schema(ref_template="#/definitions/{model}")
    definitions: dict[str, Any] = {name: _draft_7(model) for name, model in schema["$defs"].items()}
    for name, model in definitions.items():
        model["required"] = REQUIRED.get(name, [])
        if not model["required"]:
            del model["required"]
    definitions["Place"]["oneOf"] = [{"required": [name]} for name in definitions["Place"]["properties"]]
    definitions["Gateway"]["properties"]["settings"] = {"$ref": "#/definitions/Settings"}
    clash = definitions.keys() & settings.keys()
    assert not clash, f"two definitions have one name: {clash}"
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart serving",
        "type": "object",
        "additionalProperties": False,
        "properties": _draft_7(schema["properties"]),
        "definitions": {**definitions, **settings},
    }


def _draft_7(node: Any) -> Any:
    """Without titles and defaults; a reference stands alone, since draft 7 passes over what is beside it."""
    if isinstance(node, list):
        return [_draft_7(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    named = isinstance(node.get("title"), dict)  # a property of that name
    return {key: _draft_7(value) for key, value in node.items() if named or key not in ("title", "default")}
