"""`serving gate run` as the controller calls it: URL, the pool's words, --configuration FILE --without-prompts --json."""

import json
import os
import sys
import time
from pathlib import Path

from serving.gate.digest import Configuration
from serving.gate.verdict import to_json
from tests.gate.verdicts import GOOD

url, mode, *rest = sys.argv[1:]
configuration = Configuration.model_validate_json(Path(rest[rest.index("--configuration") + 1]).read_text())
assert "--json" in rest and "--without-prompts" in rest
if mode == "hang":
    Path(os.environ["FAKE_GATE_PID"]).write_text(str(os.getpid()))
    time.sleep(600)
if mode == "crash":
    sys.exit("serving: --matched: no such file")
if mode == "chatter":
    print("not a verdict")
    sys.exit(0)
outcome = {"pass": "pass", "fail": "fail", "undecided": "not_decided"}[mode]
reason = json.dumps({"url": url, "secret": os.environ.get("SERVING_ENGINE_SECRET")})
verdict = GOOD.model_copy(
    update={"configuration": configuration, "digest": configuration.digest, "outcome": outcome, "reason": reason}
)
print(to_json(verdict))
sys.exit(verdict.exit_status)
