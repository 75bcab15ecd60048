"""The snapshot of an installed vLLM's metric families for the simulator: kind, help, labels, buckets and what brings each.

vLLM's own code declares the series; here each class that does so is run with a recorder in the place of prometheus_client,
so that also the families of options that this machine cannot run are known. The result depends on the version only.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from serving.engines.snapshot import installed_version

LABELS = ["model_name", "engine"]
TOKENS = 4096
"""A context length whose 1-2-5 series of buckets is recognised again; it stands for the real one."""
CONNECTORS = {
    "nixl": "distributed.kv_transfer.kv_connector.v1.nixl.stats:NixlPromMetrics",
    "mooncake": "distributed.kv_transfer.kv_connector.v1.mooncake.store.metrics:MooncakeStorePromMetrics",
    "hf3fs": "distributed.kv_transfer.kv_connector.v1.hf3fs.hf3fs_connector:HF3FSPromMetrics",
    "hisparse": "distributed.kv_transfer.kv_connector.v1.hisparse.stats:HiSparsePromMetrics",
    "offloading": "distributed.kv_transfer.kv_connector.v1.offloading.metrics:OffloadPromMetrics",
    "simple-offloading": "v1.simple_kv_offload.metrics:SimpleCPUOffloadPromMetrics",
}
CONDITIONS = {
    "vllm:corrupted_requests": "VLLM_COMPUTE_NANS_IN_LOGITS",
    "vllm:watermark_requests": "watermark-config",
    "vllm:num_requests_kv_fetch_by_stage": "kv-transfer-config",
    "vllm:kv_block_lifetime_seconds": "kv-cache-metrics",
    "vllm:kv_block_idle_before_evict_seconds": "kv-cache-metrics",
    "vllm:kv_block_reuse_gap_seconds": "kv-cache-metrics",
    "vllm:lora_requests_info": "enable-lora",
    "vllm:websocket_connections_active": "realtime",
    "vllm:websocket_connections_total": "realtime",
    "vllm:websocket_connection_duration_seconds": "realtime",
}


class Recorder:
    """Stands for prometheus_client's classes and keeps what they are called with."""

    def __init__(self) -> None:
        self.families: dict[str, dict[str, Any]] = {}
        self.condition = ""

    def kind(self, kind: str) -> Callable[..., Any]:
        def declare(name: str, documentation: str = "", labelnames: Any = (), **more: Any) -> mock.MagicMock:
            family: dict[str, Any] = {"kind": kind, "help": documentation, "labels": list(labelnames)}
            if kind == "histogram":
                family["buckets"] = self._buckets(more.get("buckets"))
            condition = CONDITIONS.get(name, self.condition)
            if condition:
                family["when"] = condition
            self.families[name] = family
            return mock.MagicMock()

        return declare

    @staticmethod
    def _buckets(given: Any) -> Any:
        from prometheus_client import Histogram
        from vllm.v1.metrics.buckets import build_1_2_5_buckets

        bounds = [float(bound) for bound in (Histogram.DEFAULT_BUCKETS if given is None else given)]
        if bounds == [float(bound) for bound in build_1_2_5_buckets(TOKENS)]:
            return "request_tokens"
        return [bound for bound in bounds if bound != float("inf")]

    @contextmanager
    def under(self, condition: str) -> Iterator[None]:
        self.condition = condition
        try:
            yield
        finally:
            self.condition = ""

    def put_into(self, holder: Any) -> None:
        for kind in ("gauge", "counter", "histogram"):
            if hasattr(holder, f"_{kind}_cls"):
                setattr(holder, f"_{kind}_cls", staticmethod(self.kind(kind)))


def snapshot() -> dict[str, Any]:
    """The families of the installed vLLM by name, ready for JSON and sorted."""
    import vllm.envs

    recorder = Recorder()
    config = _config()
    with mock.patch.object(vllm.envs, "VLLM_COMPUTE_NANS_IN_LOGITS", True):  # one family depends on it
        _stat_logger(recorder, config)
        _connectors(recorder, config)
        _front_end(recorder)
    return {"engine": "vllm", "version": installed_version(), "families": dict(sorted(recorder.families.items()))}


def _config() -> Any:
    config = mock.MagicMock()
    config.model_config.served_model_name = "m"
    config.model_config.max_model_len = TOKENS
    config.observability_config.custom_histogram_buckets = None
    config.kv_transfer_config.kv_connector_extra_config = {}
    return config


def _stat_logger(recorder: Recorder, config: Any) -> None:
    from vllm.config import CacheConfig
    from vllm.v1.metrics.loggers import PrometheusStatLogger
    from vllm.v1.metrics.perf import PerfMetricsProm
    from vllm.v1.spec_decode.metrics import SpecDecodingProm

    class Recorded(PrometheusStatLogger):  # type: ignore[misc, unused-ignore]  # there is no vLLM in every environment that checks types
        _spec_decoding_cls = _perf_metrics_cls = mock.MagicMock()
        _kv_connector_cls = _ec_connector_cls = mock.MagicMock()

    recorder.put_into(Recorded)
    logger = Recorded(config, [0])
    logger.log_metrics_info("cache_config", CacheConfig(block_size=16))
    recorder.put_into(SpecDecodingProm)
    for is_diffusion, condition in ((False, "speculative-config"), (True, "diffusion")):
        with recorder.under(condition):
            config.speculative_config.num_speculative_tokens = 1
            SpecDecodingProm(config.speculative_config, LABELS, {0: ["m", "0"]}, is_diffusion=is_diffusion)
    recorder.put_into(PerfMetricsProm)
    PerfMetricsProm(config, LABELS, {0: ["m", "0"]})


def _connectors(recorder: Recorder, config: Any) -> None:
    import prometheus_client

    kinds = {getattr(prometheus_client, kind.title()): recorder.kind(kind) for kind in ("gauge", "counter", "histogram")}
    for condition, place in CONNECTORS.items():
        module, _, name = place.partition(":")
        with recorder.under(condition):
            getattr(importlib.import_module(f"vllm.{module}"), name)(config, kinds, LABELS, {0: ["m", "0"]})
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    with recorder.under("tiering"):
        about: Any
        for name, about in TieringOffloadingSpec.build_metric_definitions({"store_threshold": 2}).items():
            if name not in recorder.families:
                kind = type(about).__name__.removeprefix("Offloading").removesuffix("Metadata").lower()
                buckets = {"buckets": about.buckets} if kind == "histogram" else {}
                recorder.kind(kind)(name, about.documentation, LABELS + list(about.labelnames), **buckets)


def _front_end(recorder: Recorder) -> None:
    places: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "tool-call-parser": ("parser.metrics", lambda module: module.init_parser_metrics(model_name="m")),
        "VLLM_SERVER_DEV_MODE": ("entrypoints.serve.dev.sleep.metrics", lambda module: module.SleepModeOperationMetrics()),
        "VLLM_SERVER_DEV_MODE ": ("entrypoints.rl.online.metrics", _first_metrics_class),
        "realtime": ("entrypoints.speech_to_text.realtime.metrics", lambda module: None),
    }
    for condition, (place, declare) in places.items():
        kinds = {f"prometheus_client.{kind.title()}": recorder.kind(kind) for kind in ("gauge", "counter", "histogram")}
        with recorder.under(condition.strip()):
            patches = [mock.patch(target, new) for target, new in kinds.items()]
            for patch in patches:
                patch.start()
            try:
                sys.modules.pop(f"vllm.{place}", None)
                declare(importlib.import_module(f"vllm.{place}"))
            finally:
                for patch in patches:
                    patch.stop()


def _first_metrics_class(module: Any) -> None:
    for name, value in vars(module).items():
        if name.endswith("Metrics") and isinstance(value, type) and value.__module__ == module.__name__:
            value()


def render(data: dict[str, Any]) -> str:
    """JSON with one family a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(family)}" for name, family in data["families"].items()]
    head = f' "engine": {json.dumps(data["engine"])},\n "version": {json.dumps(data["version"])},\n "families": {{\n'
    return "{\n" + head + ",\n".join(lines) + "\n }\n}\n"
