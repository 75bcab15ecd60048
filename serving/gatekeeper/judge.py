"""Runs `serving gate run` against a pod as a process of its own, which is killed when nobody wants its verdict any more.

A run takes memory and time that the controller must not lack for its Lease, and what it holds is gone with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from serving.core.errors import ConfigurationError
from serving.gate.verdict import EXIT_STATUS, Verdict, from_json
from serving.gatekeeper.controller import JudgeFailed
from serving.gatekeeper.pods import GatedPod
from serving.gatekeeper.settings import GatekeeperSettings
from serving.settings import child_environment

RUN = (sys.executable, "-m", "serving", "gate", "run")
SECRET_VARIABLE = "SERVING_ENGINE_SECRET"
SAID_CHARACTERS = 500


class ProcessJudge:
    """The words behind the pod's address are the pool's own, from the settings."""

    def __init__(self, settings: GatekeeperSettings, run: Sequence[str] = RUN) -> None:
        self._settings = settings
        self._run = tuple(run)

    async def __call__(self, pod: GatedPod) -> Verdict:
        """Raises: JudgeFailed."""
        words = self._settings.pools.get(pod.pool)
        if words is None:
            raise JudgeFailed(f"the settings say nothing about the pool {pod.pool or '(none)'}")
        with tempfile.TemporaryDirectory(prefix="serving-gate-") as folder:
            configuration = Path(folder) / "configuration.json"
            configuration.write_text(pod.configuration.model_dump_json())
            own = ("--configuration", str(configuration), "--without-prompts", "--json")
            status, printed, said = await self._process((*self._run, pod.url, *words, *own))
        if status not in EXIT_STATUS.values():
            raise JudgeFailed(f"the gate ended with status {status}: {said}")
        try:
            return from_json(printed, "the gate's verdict")
        except ConfigurationError as error:
            raise JudgeFailed(f"{error}: {said}") from None

    async def _process(self, command: Sequence[str]) -> tuple[int, bytes, str]:
        """Its exit status, what it printed, and the end of what it said on standard error."""
        secret = self._settings.engine_secret_file
        environment = child_environment({} if secret is None else {SECRET_VARIABLE: _first_line(secret)})
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            printed, said = await process.communicate()
            assert process.returncode is not None
            return process.returncode, printed, said.decode(errors="replace").strip()[-SAID_CHARACTERS:]
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())


def _first_line(path: Path) -> str:
    """The newest secret stands first. Raises: JudgeFailed."""
    try:
        return path.read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, ValueError, IndexError) as error:
        raise JudgeFailed(f"the engines' secret in {path} cannot be read: {error}") from None
