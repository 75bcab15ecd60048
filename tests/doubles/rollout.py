"""A Deployment's rolling update as Kubernetes does it with maxUnavailable 1 and maxSurge 0, over pods of a KubernetesApi."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.doubles.kubernetes_api import PODS, KubernetesApi


class Rollout:
    """`step` does what the controller would do now; it goes on only while no more than one pod is not ready."""

    def __init__(self, api: KubernetesApi, old: Sequence[str], new: Sequence[str], start: Callable[[str], None]) -> None:
        """`start` adds the pod of that name."""
        self._api = api
        self._old, self._new, self._start = list(old), list(new), start
        self.started: list[str] = []

    @property
    def is_complete(self) -> bool:
        return not self._old and not self._new and all(map(self._api.is_ready, self.started))

    def step(self) -> None:
        present = [name for name in (*self._old, *self.started) if name in self._api.objects[PODS]]
        if self._old and all(map(self._api.is_ready, present)):
            self._api.remove_pod(self._old.pop(0))
            name = self._new.pop(0)
            self.started.append(name)
            self._start(name)
