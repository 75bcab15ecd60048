"""A pod's startup probe: the engine has answered one request with a token, and not only opened its port.

    python3 first_token.py PORT MODEL

Asks once and exits 0 or 1; Kubernetes asks again until the answer is right, and never again after that. Sends the release's
secret, which no HTTP probe of a kubelet can. A plain file: standard library only, Python 3.10 and later.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

SECONDS = 110.0
"""Longer than a first request that compiles kernels, shorter than the probe's own time-out."""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 a token came, 1 none did, 2 the call is wrong."""
    if len(arguments) != 2:
        print(f"usage: {(__doc__ or '').splitlines()[2].strip()}", file=sys.stderr)
        return 2
    port, model = arguments
    body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), _headers())
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            tokens = json.load(answer)["usage"]["completion_tokens"]
    except urllib.error.HTTPError as error:
        with error:
            print(f"the engine answers {error.code}: {error.read(300).decode(errors='replace')}", file=sys.stderr)
        return 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"no token yet: {error}", file=sys.stderr)
        return 1
    if not tokens:
        print("the engine answers without a token", file=sys.stderr)
        return 1
    return 0


def _headers() -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    path = os.environ.get("SERVING_ENGINE_SECRET_FILE")
    if path:
        # Of several secrets, one a line, an engine takes each.
        headers["X-Serving-Engine-Secret"] = Path(path).read_text(encoding="ascii").split()[0]
    return headers


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
