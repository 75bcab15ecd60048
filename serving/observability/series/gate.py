"""The series of the gate's controller, which is a process of its own."""

from serving.observability.series.definition import counter, gauge

VERDICT = gauge(
    "serving_gate_verdict", "1 for the verdict on each configuration.", "pool", "digest8", "verdict", over_gateways="max"
)
POD_READY = gauge(
    "serving_gate_pod_ready",
    "1 while the condition serving/quality of a pod is True, 0 while it is not, with its reason.",
    "pool", "pod", "reason",
    over_gateways="max",
)  # fmt: skip
APPROVALS = counter(
    "serving_gate_approvals",
    "Configurations that a person let serve against the gate's word, as they are kept in the cluster.",
    "pool",
    over_gateways="max",
)
RUNS = counter("serving_gate_runs", "Runs of the gate by result; `error`: it brought no verdict.", "pool", "result")
LEADER = gauge("serving_gate_leader", "1 while this controller leads.")
