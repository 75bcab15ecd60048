"""The committed metric families against those that the installed vLLM declares."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.doubles.catalogs import SHIPPED


@pytest.mark.engine
def test_the_families_are_those_of_the_installed_vllm() -> None:
    root = SHIPPED.parent
    command = [sys.executable, "-m", "serving", "snapshot", "--families", "--print"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout
    version = json.loads(made)["version"]
    assert made == (root / "serving" / "sim" / "data" / f"vllm-{version}-metrics.json").read_text()
