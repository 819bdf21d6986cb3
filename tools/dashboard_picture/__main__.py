"""`python -m tools.dashboard_picture FILE [MINUTES]`: runs a pool under load, and draws the dashboard from Prometheus.

Needs the program `prometheus`. Redis, a supervisor, two worker processes and Prometheus are real; the load is made up.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import anyio

from orchestrator import Orchestrator, Submission
from orchestrator.services import hold_ephemeral
from tools.dashboard_picture.draw import Series, draw
from tools.grafana import rendered

ROOT: Final = Path(__file__).parents[2]
SUPERVISOR, WORKER, PROMETHEUS = "127.0.0.1:19471", "127.0.0.1:19472", "127.0.0.1:19490"
SCRAPE_S: Final = 2
VARIABLES: Final = {
    "$prefix": ".*",
    "$pool": ".*",
    "$agent": ".*",
    "$skill": ".*",
    "$__rate_interval": f"{SCRAPE_S * 8}s",
}


def main() -> None:
    """Run the pool and write the picture."""
    target, minutes = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
    begin = time.time()
    with ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        redis = running.enter_context(hold_ephemeral())
        environ = {**os.environ, "ORC_REDIS__URL": redis.url, "ORC_LOGGING__LEVEL": "error"}
        environ |= {"ORC_SUPERVISOR__HEALTH": SUPERVISOR, "ORC_WORKER__HEALTH": WORKER, "ORC_WORKER__PROCESSES": "2"}
        orc = [sys.executable, "-m", "orchestrator"]
        _start(running, [*orc, "supervisor", "run"], environ)
        _start(running, [*orc, "worker", "run", *_agents()], environ)
        _start(running, _prometheus(Path(folder)), environ)
        anyio.run(_load, redis.url, minutes * 60)
        dashboard = json.loads(rendered())
        end = time.time()
        data = {
            panel["id"]: [
                series for target_ in panel["targets"] for series in _series(target_, (begin, end), panel["type"])
            ]
            for panel in dashboard["panels"]
            if panel["type"] != "row"
        }
    target.write_text(draw(dashboard, data, (begin, end)), encoding="utf-8")


def _agents() -> list[str]:
    return [f"tools.dashboard_picture.agents:{name}" for name in ("researcher", "writer", "reviewer")]


def _start(running: ExitStack, command: list[str], environ: dict[str, str]) -> None:
    process = subprocess.Popen(command, env=environ, cwd=ROOT, stdin=subprocess.DEVNULL)
    running.callback(process.wait)
    running.callback(process.terminate)


def _prometheus(folder: Path) -> list[str]:
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("prometheus is missing; install the package prometheus")
    text = (ROOT / "config" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    text = text.replace("15s", f"{SCRAPE_S}s").replace("127.0.0.1:9471", SUPERVISOR).replace("127.0.0.1:9472", WORKER)
    (folder / "prometheus.yml").write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "config" / "prometheus" / "alerts.yml", folder)
    storage = f"--storage.tsdb.path={folder / 'data'}"
    return [program, f"--config.file={folder / 'prometheus.yml'}", storage, f"--web.listen-address={PROMETHEUS}"]


async def _load(url: str, seconds: float) -> None:
    """Submit tasks: a swelling load, and once a burst."""
    until = time.monotonic() + seconds
    async with Orchestrator(url) as orc:
        burst_at = time.monotonic() + seconds * 0.55
        await orc.admin.schedules.add("digest", "write", {"topic": "the day"}, every=10)
        while time.monotonic() < until:
            left = (until - time.monotonic()) / seconds
            searches = random.randint(0, round(12 - 8 * left))
            await orc.submit_many([Submission("search", {"query": f"query {number}"}) for number in range(searches)])
            for skill, name, share in (("write", "topic", 0.8), ("review", "text", 0.6)):
                if random.random() < share:
                    delay = random.choice((None, None, 5))
                    await orc.submit(skill, {name: "streams"}, delay=delay, session=f"s{random.randint(1, 40)}")
            if time.monotonic() > burst_at:
                burst_at = until
                await orc.admin.set_limit("@writer", "8/s", reason="the provider allows more")
                await orc.submit_many([Submission("search", {"query": f"burst {number}"}) for number in range(1500)])
            await anyio.sleep(0.2)


def _series(target: dict[str, Any], span: tuple[float, float], kind: str) -> list[Series]:
    """Ask Prometheus for the series of a query."""
    query = target["expr"]
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    asked = {"query": query, "start": span[0], "end": span[1], "step": SCRAPE_S}
    url = f"http://{PROMETHEUS}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as refused:
        raise SystemExit(f"{query}: {refused.read().decode()}") from None
    series = []
    for each in found:
        legend = target["legendFormat"]
        for name, value in each["metric"].items():
            legend = legend.replace(f"{{{{{name}}}}}", value)
        points = [(float(at), float(value)) for at, value in each["values"] if value not in {"NaN", "+Inf", "-Inf"}]
        if points:
            series.append(Series(legend, points))
    busy = [one for one in series if kind == "stat" or len(found) <= 3 or any(value for _, value in one.points)]
    return busy or series


if __name__ == "__main__":
    main()
