"""The gate's controller: every pod with our readiness gate gets the condition that the verdict on its configuration says.

It is driven by what is there, not by what happened: each look compares all pods with all records, so that nothing is lost
with a watch, a leader or a pod. A configuration that nobody judged is judged at one of its pods, by address, and the verdict
is written before any pod is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from serving.fleet.mirror import ApiFailed, Document, Mirror, follow
from serving.gate.verdict import Verdict
from serving.gatekeeper.cluster import Cluster
from serving.gatekeeper.pods import Condition, GatedPod, gated_pod
from serving.gatekeeper.records import NAME_DIGITS, Kept, config_map, kept, selector
from serving.gatekeeper.settings import GatekeeperSettings
from serving.gatekeeper.standing import Standings, condition_of

log = logging.getLogger("serving.gate")

LOOK_SECONDS = 5.0
"""Between two looks at all that is there, when nothing changes."""
MOST_DOUBLINGS = 5
MOST_WRITE_SECONDS = 10.0
"""Between two attempts to write a verdict down."""


class JudgeFailed(Exception):
    """A run of the gate brought no verdict; the message says why."""


class Judge(Protocol):
    """Runs the gate against a pod's own address. Raises: JudgeFailed. Cancelled, it leaves nothing running."""

    async def __call__(self, pod: GatedPod) -> Verdict: ...


@dataclass(slots=True)
class _Run:
    pod: GatedPod
    task: asyncio.Task[None]
    is_judged: bool = False
    """Its verdict is there and only has to be written: that needs no pod."""


@dataclass(slots=True)
class _Trouble:
    """Runs of one configuration that broke off."""

    said: str
    count: int
    until: float


class Controller:
    """Everything public may be read at any time, by the metrics."""

    def __init__(
        self,
        cluster: Cluster,
        judge: Judge,
        settings: GatekeeperSettings,
        *,
        ran: Callable[[str, str], None] = lambda pool, result: None,
    ) -> None:
        """`ran` is called with the pool and pass, fail, not_decided or error after each run of the gate."""
        self._cluster, self._judge, self._settings, self._ran = cluster, judge, settings, ran
        access = settings.kubernetes
        self._pods: Mirror[GatedPod] = Mirror(
            f"{cluster.core}/pods", {"labelSelector": settings.selector}, gated_pod, cluster.api, access
        )
        ours = {"labelSelector": selector(settings.name)}
        self._records: Mirror[Kept] = Mirror(f"{cluster.core}/configmaps", ours, kept, cluster.api, access)
        self._changed = asyncio.Event()
        self._pods.changed = self._records.changed = self._changed.set
        self._written: dict[str, Kept] = {}
        """Records that no list has shown yet."""
        self._runs: dict[str, _Run] = {}
        self._troubles: dict[str, _Trouble] = {}
        self._told: dict[str, Condition] = {}
        """By uid, so that what is seen late is not said twice."""
        self._owner: Document | None = None

    @property
    def pods(self) -> list[GatedPod]:
        return list(self._pods.objects.values())

    @property
    def standings(self) -> Standings:
        self._written = {name: each for name, each in self._written.items() if name not in self._records.objects}
        return Standings.of([*self._records.objects.values(), *self._written.values()])

    async def lead(self) -> None:
        """Work until cancelled; then no run is left behind."""
        self._written.clear()
        list_seconds = self._settings.kubernetes.list_seconds
        self._pods.listed = self._records.listed = False
        tasks = [
            asyncio.create_task(follow(self._pods, "gated pods", list_seconds), name="gate-pods"),
            asyncio.create_task(follow(self._records, "verdicts", list_seconds), name="gate-records"),
        ]
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._changed.wait()
                self._changed.clear()
                for task in tasks:
                    if task.done():
                        task.result()
                # Without both lists nothing is known, and an unknown verdict is not the same as none.
                if self._pods.listed and self._records.listed:
                    await self._look()
        finally:
            for task in (*tasks, *(run.task for run in self._runs.values())):
                task.cancel()
            await asyncio.gather(*tasks, *(run.task for run in self._runs.values()), return_exceptions=True)
            self._runs.clear()

    async def _look(self) -> None:
        standings = self.standings.by_digest
        pods = [pod for pod in self._pods.objects.values() if not pod.leaving]
        digests = {pod.digest for pod in pods}
        self._stop_runs({pod.uid: pod for pod in pods})
        self._told = {pod.uid: self._told[pod.uid] for pod in pods if pod.uid in self._told}
        self._troubles = {digest: trouble for digest, trouble in self._troubles.items() if digest in digests}
        for digest in sorted(digests):
            group = [pod for pod in pods if pod.digest == digest]
            condition = condition_of(standings.get(digest), digest)
            if (standings.get(digest) is None or standings[digest].verdict is None) and condition is None:
                self._begin(digest, group)
                condition = self._meanwhile(digest)
            for pod in group:
                await self._tell(pod, condition)

    def _meanwhile(self, digest: str) -> Condition | None:
        """Of the pods of a configuration that was not judged yet."""
        if digest in self._runs:
            return Condition("False", "Judging", f"{digest[:NAME_DIGITS]}: the gate runs against {self._runs[digest].pod.name}")
        trouble = self._troubles.get(digest)
        return Condition("False", "NotJudged", f"{digest[:NAME_DIGITS]}: {trouble.said}"[:1000]) if trouble else None

    async def _tell(self, pod: GatedPod, condition: Condition | None) -> None:
        if condition is None or pod.condition == condition:
            return
        is_serving = pod.condition is not None and pod.condition.status == "True"
        if is_serving and condition.reason in ("Judging", "NotJudged"):
            return  # its verdict went; until there is another one it serves on
        try:
            await self._cluster.set_condition(pod, condition)
        except ApiFailed as error:
            log.warning("pod %s: its condition cannot be written: %s", pod.name, error, extra={"pod": pod.name})
            return
        is_new = self._told.get(pod.uid) != condition
        self._told[pod.uid] = condition
        if not is_new:
            return
        level = logging.WARNING if condition.reason in ("Failed", "NotDecided", "NeedsApproval", "NotJudged") else logging.INFO
        extra = {"pod": pod.name, "pool": pod.pool, "digest": pod.digest}
        log.log(level, "pod %s: %s: %s", pod.name, condition.reason, condition.message, extra=extra)
        await self._say(pod, condition)

    async def _say(self, pod: GatedPod, condition: Condition) -> None:
        warning = condition.status == "False" and condition.reason != "Judging"
        try:
            await self._cluster.event(
                "Pod", pod.name, pod.uid, warning=warning, reason=f"Quality{condition.reason}", message=condition.message
            )
        except ApiFailed as error:
            log.warning("pod %s: no event is written: %s", pod.name, error, extra={"pod": pod.name})

    # Runs

    def _stop_runs(self, present: dict[str, GatedPod]) -> None:
        """Runs whose pod is gone, or is another one, say nothing any more."""
        for digest, run in list(self._runs.items()):
            pod = present.get(run.pod.uid)
            if run.task.done():
                del self._runs[digest]
            elif not run.is_judged and (pod is None or (pod.digest, pod.url, pod.started) != (digest, run.pod.url, True)):
                run.task.cancel()

    def _begin(self, digest: str, group: list[GatedPod]) -> None:
        """Judge the configuration at one of its pods, where that is possible now."""
        askable = [pod for pod in group if pod.started and pod.address]
        trouble = self._troubles.get(digest)
        if digest in self._runs or not askable or len(self._runs) >= self._settings.runs_at_once:
            return
        if trouble is not None and asyncio.get_running_loop().time() < trouble.until:
            return
        # One that does not serve: a run costs time that users would miss.
        pod = min(askable, key=lambda each: (each.condition is not None and each.condition.status == "True", each.name))
        task = asyncio.create_task(self._run(pod), name=f"gate-{digest[:NAME_DIGITS]}")
        task.add_done_callback(lambda _: self._changed.set())
        self._runs[digest] = _Run(pod, task)
        log.info("pod %s: the gate runs", pod.name, extra={"pod": pod.name, "pool": pod.pool, "digest": digest})

    async def _run(self, pod: GatedPod) -> None:
        try:
            async with asyncio.timeout(self._settings.run_seconds):
                verdict = await self._judge(pod)
            if verdict.digest != pod.digest:
                raise JudgeFailed(f"the gate judged another configuration, {verdict.digest[:NAME_DIGITS]}")
        except (JudgeFailed, TimeoutError) as error:
            said = str(error) or f"the gate took longer than {self._settings.run_seconds:g} s"
            count = self._troubles[pod.digest].count + 1 if pod.digest in self._troubles else 0
            seconds = self._settings.retry_seconds * 2.0 ** min(count, MOST_DOUBLINGS)
            self._troubles[pod.digest] = _Trouble(said, count, asyncio.get_running_loop().time() + seconds)
            self._ran(pod.pool, "error")
            log.warning("pod %s: there is no verdict: %s", pod.name, said, extra={"pod": pod.name, "digest": pod.digest})
            return
        self._troubles.pop(pod.digest, None)
        self._runs[pod.digest].is_judged = True
        self._ran(pod.pool, verdict.outcome)
        await self._keep(pod.pool, verdict)

    async def _keep(self, pool: str, verdict: Verdict) -> None:
        """Write the verdict down, however long that takes: to judge again would cost far more."""
        while True:
            try:
                await self._write(pool, verdict)
            except ApiFailed as error:
                log.warning("the verdict on %s cannot be written: %s", verdict.digest[:NAME_DIGITS], error)
                await asyncio.sleep(min(self._settings.retry_seconds, MOST_WRITE_SECONDS))
            else:
                return

    async def _write(self, pool: str, verdict: Verdict) -> None:
        """Raises: ApiFailed."""
        settings = self._settings
        if self._owner is None and settings.owner is not None:
            self._owner = await self._cluster.config_map(settings.owner)
        document = config_map(settings.name, pool, verdict, owner=self._owner)
        name = await self._cluster.keep_config_map(document)
        self._written[name] = Kept(name, pool, verdict)
