#!/usr/bin/env python3
"""The command `serving` inside an engine's image: our package lies beside vLLM's, and neither sees the other's libraries."""

import runpy
import sys

if __name__ == "__main__":
    sys.path.insert(0, "/opt/serving/lib")
    runpy.run_module("serving", run_name="__main__")
