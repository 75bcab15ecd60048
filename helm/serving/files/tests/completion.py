"""`helm test`: every model of the release answers a completion within the time that is left. Standard library only.

    python3 -c THIS URL SECONDS MODEL … [--may-sleep MODEL …]      with the key, if there is one, in SERVING_AUTH__API_KEY

A model that may sleep, since its pools are scaled to nothing, may also answer 503 with Retry-After: then an engine is on its way.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

url, seconds, words = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
asleep = words[words.index("--may-sleep") + 1 :] if "--may-sleep" in words else []
headers = {"Content-Type": "application/json"}
if "SERVING_AUTH__API_KEY" in os.environ:
    headers["Authorization"] = "Bearer " + os.environ["SERVING_AUTH__API_KEY"].strip()
deadline = time.monotonic() + seconds


def ask(model: str) -> str:
    """The text of one answer, or why there is none."""
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=max(1.0, deadline - time.monotonic())) as answer:
                return "answers: " + repr(json.load(answer)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            if model in asleep and error.code == 503 and "Retry-After" in error.headers:
                return "has no engine, which is what its pools are scaled to: 503 with Retry-After"
            why = f"{error.code} {error.read(500).decode(errors='replace')}"
            if error.code not in (429, 502, 503, 504) or time.monotonic() > deadline:
                sys.exit(f"{model}: {why}")
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"{model}: {error}")
        time.sleep(2.0)


for model in (word for word in words if word != "--may-sleep"):
    print(model, ask(model), flush=True)
