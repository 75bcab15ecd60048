"""Record a real engine for the simulator: its measured rates, and a small mixed load with what each request saw.

    python -m benchmarks.record_engine http://127.0.0.1:8001 tests/sim/data/recorded.json

Two loads, one after the other. Open: requests come at set moments whatever the engine does, which shows its TTFT. Closed: workers
that ask again as soon as they have their answer, which shows its throughput. Prompts are told as seeds and lengths, so that the
file stays small and a replay makes the same texts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from serving.sim.calibrate import Probes, Texts, calibrate, over_http
from serving.sim.probe import EngineFacts, look, stream


def text(seed: int, length: int) -> str:
    """The same text for the same seed."""
    chance = random.Random(seed)
    return "".join(chance.choice("bcdfghjklmnpqrstvwxz") for _ in range(length))


def load(seed: int, requests: int, per_second: float, bytes_per_token: float) -> list[dict[str, Any]]:
    """Arrivals as a Poisson process; half of the prompts begin with one of four shared texts."""
    chance = random.Random(seed)
    moment = 0.0
    found = []
    for number in range(requests):
        moment += chance.expovariate(per_second)
        shared = chance.random() < 0.5
        found.append(
            {
                "at_seconds": round(moment, 4),
                "shared_seed": chance.randrange(4) if shared else None,
                "shared_bytes": round(600 * bytes_per_token) if shared else 0,
                "own_seed": 1000 + seed * 1000 + number,
                "own_bytes": round(chance.choice((30, 100, 300, 900)) * bytes_per_token),
                "answer_tokens": chance.choice((16, 32, 64, 128)),
            }
        )
    return found


def prompt(request: dict[str, Any], salt: int) -> str:
    shared = "" if request["shared_seed"] is None else text(salt + request["shared_seed"], request["shared_bytes"])
    return shared + text(salt + request["own_seed"], request["own_bytes"])


def ask(engine: EngineFacts, request: dict[str, Any], salt: int, began: float) -> None:
    """Ask and write what was seen into the request."""
    request["sent_seconds"] = round(time.monotonic() - began, 4)
    seen = stream(engine, prompt(request, salt), answer_tokens=request["answer_tokens"])
    request |= {
        "first_token_seconds": round(seen.token_seconds[0], 4),
        "total_seconds": round(seen.total_seconds, 4),
        "prompt_tokens": seen.prompt_tokens,
        "cached_tokens": seen.cached_tokens,
    }


def play_open(engine: EngineFacts, requests: list[dict[str, Any]], salt: int) -> None:
    """Ask everything at its moment."""
    began = time.monotonic() + 0.2

    def wait_and_ask(request: dict[str, Any]) -> None:
        time.sleep(max(0.0, began + request["at_seconds"] - time.monotonic()))
        ask(engine, request, salt, began)

    threads = [threading.Thread(target=wait_and_ask, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def play_closed(engine: EngineFacts, workers: list[list[dict[str, Any]]], salt: int) -> None:
    """Each worker asks one after another."""
    began = time.monotonic()

    def work(requests: list[dict[str, Any]]) -> None:
        for request in requests:
            ask(engine, request, salt, began)

    threads = [threading.Thread(target=work, args=(requests,)) for requests in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("url")
    options.add_argument("file", type=Path)
    options.add_argument("--requests", type=int, default=60)
    options.add_argument("--per-second", type=float, default=3.0)
    options.add_argument("--max-num-seqs", type=int, default=128)
    options.add_argument("--max-num-batched-tokens", type=int, default=2048)
    options.add_argument("--workers", type=int, default=12, help="of the closed load")
    options.add_argument("--each", type=int, default=5, help="requests of each worker")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--note", required=True, help="which engine, which machine, what else ran")
    given = options.parse_args()
    engine = look(given.url, max_num_batched_tokens=given.max_num_batched_tokens)
    texts = Texts(over_http(engine))
    texts.measure()
    before = calibrate(engine, Probes(), report=say)
    opened = load(given.seed, given.requests, given.per_second, texts.bytes_per_token)
    closed = load(given.seed + 1, given.workers * given.each, given.per_second, texts.bytes_per_token)
    workers = [closed[number :: given.workers] for number in range(given.workers)]
    salt = int(time.time()) % 100_000 * 100_000
    play_open(engine, opened, salt)
    play_closed(engine, workers, salt)
    after = calibrate(engine, Probes(), report=say)
    data = {
        "note": given.note,
        "model": engine.model,
        "limits": {
            "max_num_seqs": given.max_num_seqs,
            "max_num_batched_tokens": given.max_num_batched_tokens,
            "max_model_len": engine.max_model_len,
        },
        "simulation_before": before.model_dump(),
        "simulation_after": after.model_dump(),
        "salt": salt,
        "open": opened,
        "closed": workers,
    }
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    say(f"{given.file}: {len(opened)} and {len(closed)} requests")


if __name__ == "__main__":
    main()
