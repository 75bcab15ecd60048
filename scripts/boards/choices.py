"""The variables at the head of the dashboards."""

from __future__ import annotations

from .panels import Variable

NAMESPACE = Variable("namespace", "Namespace", "serving_pool_info")
MODEL = Variable("model", "Model", "serving_pool_info")
TARGET = Variable("target", "Target", "serving_pool_info")
POOL = Variable("pool", "Pool", "serving_pool_info")
BASELINE = Variable("baseline", "Compared with", "serving_pool_info", several=False)
TENANT = Variable("tenant", "Tenant", "serving_tenant_requests_total")
FLEET = (NAMESPACE, MODEL, TARGET, POOL)
