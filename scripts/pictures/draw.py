"""Draws the dashboards as pictures: Grafana's own components in a headless Chromium, with what a Prometheus answers.

python scripts/pictures/draw.py --prometheus http://127.0.0.1:9090 --out FOLDER [--note "simulated"]

The packages of Node stay in the cache outside the tree, in the versions of package-lock.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from setup import cache_dir, digest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BOARDS = ROOT / "deploy" / "observability" / "dashboards"
VARIABLES = ("namespace", "model", "pool", "target", "tenant")
ROW_PIXELS, HEAD_PIXELS = 38, 84
POINTS = 240


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws the dashboards as PNG.")
    parser.add_argument("--prometheus", required=True, help="address of a Prometheus")
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--board", action="append", help="name of a dashboard; may be repeated; all without it")
    parser.add_argument("--minutes", type=float, default=5, help="time shown")
    parser.add_argument("--window", default="15s", help="what stands for $__rate_interval")
    parser.add_argument("--baseline", default="cuda-b200", help="the target that others are compared with")
    parser.add_argument("--rows", type=int, help="only so many of Grafana's rows, as on one screen")
    parser.add_argument("--width", type=int, default=1600)
    parser.add_argument("--note", default="", help="stands at the head of each picture")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    bundle = bundled()
    for name in options.board or sorted(path.stem for path in BOARDS.glob("*.json")):
        dashboard = json.loads((BOARDS / f"{name}.json").read_text(encoding="utf-8"))
        if options.rows:
            dashboard["panels"] = [p for p in dashboard["panels"] if p["gridPos"]["y"] + p["gridPos"]["h"] <= options.rows]
        target = options.out / f"{name}.png"
        draw(picture(dashboard, options), bundle, target)
        print(f"wrote {target}")


def picture(dashboard: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """What the page needs: the dashboard, and by panel and query the series with their points."""
    end = time.time()
    begin = end - options.minutes * 60
    answers: dict[int, dict[str, Any]] = {}
    for panel in dashboard["panels"]:
        answers[panel["id"]] = {}
        for target in panel.get("targets", ()):
            query = substituted(target["expr"], options)
            found = asked(options.prometheus, query, begin, end)
            answers[panel["id"]][target["refId"]] = found
            if not found:
                raise SystemExit(f"{dashboard['title']} / {panel['title']}: no points for {query}")
    return {
        "dashboard": dashboard,
        "answers": answers,
        "range": [begin, end],
        "choices": f"compared with {options.baseline}" if "$baseline" in json.dumps(dashboard) else "",
        "note": options.note,
        "width": options.width,
    }


def substituted(query: str, options: argparse.Namespace) -> str:
    out = query.replace("$__rate_interval", options.window).replace("$__range", f"{round(options.minutes * 60)}s")
    out = out.replace("$baseline", options.baseline)
    for name in VARIABLES:
        out = out.replace(f"${name}", ".*")
    return out


def asked(prometheus: str, query: str, begin: float, end: float) -> list[dict[str, Any]]:
    """Series with their points; what is no number is left out."""
    words = urllib.parse.urlencode({"query": query, "start": begin, "end": end, "step": (end - begin) / POINTS})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{words}", timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    for series in result:
        values = [(at, float(value)) for at, value in series["values"]]
        series["values"] = [(at, value) for at, value in values if math.isfinite(value)]
    return [series for series in result if series["values"]]


def bundled() -> Path:
    """The folder with the page's program; made anew when it or a version has changed."""
    folder = cache_dir() / "pictures"
    lock = HERE / "package-lock.json"
    wanted = digest(lock)
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy2(HERE / name, folder / name)
        print("pictures: fetching Grafana's components, about 400 MB on disk", flush=True)
        npm = ["npm", "ci", "--no-audit", "--no-fund", "--legacy-peer-deps", "--cache", str(cache_dir() / "npm")]
        subprocess.run(npm, cwd=folder, check=True, stdin=subprocess.DEVNULL)
        stamp.write_text(wanted, encoding="utf-8")
    shutil.copy2(HERE / "page.jsx", folder / "page.jsx")
    command = [
        str(folder / "node_modules" / ".bin" / "esbuild"),
        "page.jsx",
        "--bundle",
        "--outfile=page.js",
        "--log-level=error",
    ]
    command += [
        "--jsx=automatic",
        '--define:process.env.NODE_ENV="production"',
        "--define:global=window",
        "--loader:.svg=dataurl",
        "--loader:.ttf=empty",
    ]
    subprocess.run(command, cwd=folder, check=True, stdin=subprocess.DEVNULL)
    return folder


def draw(content: dict[str, Any], folder: Path, target: Path) -> None:
    """The page as PNG."""
    depth = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in content["dashboard"]["panels"])
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("pictures: no Chromium here (Debian: apt-get install chromium)")
    icons = folder / "node_modules" / "@grafana" / "ui" / "dist" / "public"
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        data = json.dumps(content).replace("</", "<\\/")
        page.write_text(
            "<!doctype html><meta charset=utf-8><style>body{margin:0}</style>"
            f"<link rel=stylesheet href={json.dumps((folder / 'page.css').as_uri())}><div id=page></div>"
            f"<script>window.__grafana_public_path__ = {json.dumps(icons.as_uri() + '/')}; window.PICTURE = {data};</script>"
            f"<script src={json.dumps((folder / 'page.js').as_uri())}></script>",
            encoding="utf-8",
        )
        size = f"--window-size={content['width']},{depth * ROW_PIXELS + HEAD_PIXELS}"
        command = [chromium, "--headless", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files", size]
        command += ["--virtual-time-budget=30000", f"--user-data-dir={scratch}/profile", f"--screenshot={target}", page.as_uri()]
        command += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if done.returncode or not target.exists():
            raise SystemExit(f"pictures: Chromium failed: {done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
