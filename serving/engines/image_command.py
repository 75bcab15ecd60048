#!/usr/bin/env python3
"""The command `serving` inside an engine's image: our package lies beside vLLM's, and neither sees the other's libraries."""

import sys

sys.path.insert(0, "/opt/serving/lib")

from serving.cli import main

if __name__ == "__main__":
    main()
