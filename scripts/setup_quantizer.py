"""Puts llm-compressor into the cache, for `serving quantize`, after `scripts/setup.py` has made `.venv` with its engine layer.

It stands in a folder of its own, which is put before `.venv` while it runs: it wants another compressed-tensors than vLLM has,
and its torch is the one of `.venv` (by its own wish pip would fetch the CUDA build, 4 GB).
"""

from __future__ import annotations

import shutil
import time

import setup
from setup import ROOT, cache_dir, digest, fetched, pip, say

STAMP = ".installed"


def make_overlay() -> None:
    """Made beside its place and renamed, so that one that is there is whole."""
    lock = ROOT / "requirements" / "quantizer.txt"
    folder = cache_dir() / "quantizer"
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest(lock):
        return
    began = time.monotonic()
    wheels = fetched("quantizer", lock)
    say("installing llm-compressor")
    partial = folder.with_name("quantizer.partial")
    shutil.rmtree(partial, ignore_errors=True)
    pip(
        *("install", "--quiet", "--no-deps", "--no-index", "--target", str(partial)),
        *("--find-links", str(wheels), "--requirement", str(lock)),
    )
    (partial / STAMP).write_text(digest(lock), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    say(f"llm-compressor is ready after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    setup.reporting_failures(make_overlay)
