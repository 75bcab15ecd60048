"""A real Prometheus on loopback that scrapes what the chart's PodMonitors would have it scrape."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.doubles.real_engine import free_port
from tests.doubles.tools import tool

START_SECONDS = 180.0
SCRAPE_INTERVAL = "1s"


class NoPoints(AssertionError):
    """A query gave nothing that can be drawn."""


def scrape_config(monitor: Mapping[str, Any], address: str, meta: Mapping[str, str]) -> dict[str, Any]:
    """What the operator makes of a PodMonitor's first endpoint, with one pod at `address` and no discovery.

    `meta` are the labels that discovery would give it, without their prefix.
    """
    spec, (endpoint,) = monitor["spec"], monitor["spec"]["podMetricsEndpoints"]
    words = {"sourceLabels": "source_labels", "targetLabel": "target_label", "replacement": "replacement"}
    relabelings: list[dict[str, Any]] = [
        {words[name]: value for name, value in relabeling.items()} for relabeling in endpoint.get("relabelings", [])
    ]
    usual = {"namespace": "namespace", "pod_name": "pod", "pod_container_name": "container"}
    relabelings += [{"source_labels": [f"__meta_kubernetes_{name}"], "target_label": label} for name, label in usual.items()]
    relabelings += [{"target_label": "endpoint", "replacement": endpoint["port"]}]
    return {
        "job_name": f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}",
        "honor_labels": endpoint.get("honorLabels", False),
        "metrics_path": endpoint["path"],
        "scrape_interval": SCRAPE_INTERVAL,
        "scrape_timeout": SCRAPE_INTERVAL,
        **({"scrape_protocols": spec["scrapeProtocols"]} if "scrapeProtocols" in spec else {}),
        "static_configs": [
            {"targets": [address], "labels": {f"__meta_kubernetes_{name}": value for name, value in meta.items()}}
        ],
        "relabel_configs": relabelings,
    }


class Prometheus:
    """Its answers."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def points(self, query: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series now, or at a moment of the wall clock.

        Raises: NoPoints, also where no value is a number.
        """
        result = self.get("query", query=query, **({} if at is None else {"time": f"{at:.3f}"}))["result"]
        found = [(series["metric"], float(series["value"][1])) for series in result]
        finite = [(labels, value) for labels, value in found if math.isfinite(value)]
        if not finite:
            raise NoPoints(f"{query} gives {found or 'nothing'}")
        return finite

    def label_values(self, matcher: str, label: str) -> list[str]:
        return list(self.get(f"label/{label}/values", **{"match[]": matcher}))


@contextlib.contextmanager
def running_prometheus(
    version: str,
    folder: Path,
    scrape: Sequence[Mapping[str, Any]],
    rules: Sequence[Path] = (),
    *,
    evaluation_interval: str = SCRAPE_INTERVAL,
) -> Iterator[Prometheus]:
    """Start one, yield it when it is ready, and end it."""
    program = tool(version, "prometheus")
    configuration = folder / "prometheus.yml"
    intervals = {"evaluation_interval": evaluation_interval}
    configuration.write_text(
        yaml.safe_dump({"global": intervals, "scrape_configs": list(scrape), "rule_files": [str(path) for path in rules]})
    )
    port = free_port()
    log = folder / "prometheus.log"
    command = [str(program), f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        _await_ready(f"http://127.0.0.1:{port}", process, log)
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(timeout=30)


def _await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"Prometheus ended with status {process.returncode}: {log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=2):
            return
        time.sleep(0.1)
    raise AssertionError(f"Prometheus is not ready after {START_SECONDS} s: {log.read_text()[-2000:]}")
