"""The committed snapshot against the vLLM that is installed, and every command line against vLLM's own parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from serving.catalog.argv import engine_command
from serving.catalog.load import load_catalog
from tests.doubles.catalogs import SHIPPED

REPOSITORY = SHIPPED.parent
CATALOG = load_catalog(SHIPPED)
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
lines = json.load(sys.stdin)
print(json.dumps([vars(make_arg_parser(FlexibleArgumentParser()).parse_args(line))["max_model_len"] for line in lines]))
"""


@pytest.mark.engine
def test_the_snapshot_is_that_of_the_installed_vllm() -> None:
    command = [sys.executable, "-m", "serving", "snapshot", "--print"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout
    version = json.loads(made)["version"]
    assert made == (SHIPPED / "engines" / f"vllm-{version}.json").read_text()


@pytest.mark.engine
def test_the_file_alone_makes_it_too() -> None:
    """As in vLLM's image, where nothing of ours is installed: isolated, so that the package is not found."""
    script = REPOSITORY / "serving" / "engines" / "snapshot.py"
    command = [sys.executable, "-I", str(script)]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    assert made == (SHIPPED / "engines" / f"vllm-{json.loads(made)['version']}.json").read_text()


@pytest.mark.engine
def test_vllm_parses_every_command_line() -> None:
    names = [name for name, profile in CATALOG.profiles.items() if profile.engine_version == "0.32.0"]
    lines = [engine_command(CATALOG, name, model_path=Path("/m"), host="127.0.0.1", port=8001).argv[3:] for name in names]
    done = subprocess.run([sys.executable, "-c", PARSE], input=json.dumps(lines), capture_output=True, text=True, check=True)
    lengths = json.loads(done.stdout.splitlines()[-1])
    assert lengths == [CATALOG.profiles[name].arguments["max-model-len"] for name in names]
