"""Puts together what the page `/ui` shows, from what the gateway knows anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import serving
from serving.api.ui_state import Charged, ChatModel, PlaygroundState, PoolState, State, throughput_in_all, throughput_of
from serving.core.clock import monotonic
from serving.fleet.report import FleetReport, PoolReport
from serving.fleet.store import Fleet
from serving.observability.busiest import MOST_SHOWN
from serving.observability.last_errors import LastErrors
from serving.observability.window import PoolKey, View, Window
from serving.routing.models import PublicModel
from serving.settings import Settings


class Board:
    """`condition`: whether the gateway takes requests, as `/readyz` says. `waiting`: how many requests wait here for a slot."""

    def __init__(
        self,
        settings: Settings,
        *,
        fleet: Fleet,
        models: Mapping[str, PublicModel],
        report: Callable[[], FleetReport],
        window: Window,
        errors: LastErrors,
        condition: Callable[[], str],
        in_flight: Callable[[], int],
        waiting: Callable[[], float],
        why_closed: str,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._models = models
        self._report = report
        self._window = window
        self._errors = errors
        self._condition = condition
        self._in_flight = in_flight
        self._waiting = waiting
        self._why_closed = why_closed
        self._began = monotonic()

    def state(self) -> State:
        view, pools = self._window.look(), self._report().pools
        keys = [(pool.model, pool.name, pool.target) for pool in pools]
        in_all, tenants = view.figures(keys), view.tenants
        shown = tuple(self._pool(pool, view) for pool in pools)
        return State(
            version=serving.__version__,
            state=self._condition(),
            uptime_seconds=monotonic() - self._began,
            window_seconds=view.seconds,
            in_flight=self._in_flight(),
            waiting=round(self._waiting()),
            requests_per_second=view.requests_per_second,
            failed=view.failed,
            throughput=throughput_in_all(pools, in_all),
            figures=in_all,
            money=view.money(keys),
            unpriced=tuple(dict.fromkeys(pool.name for pool in shown if pool.money.per_hour is None)),
            pools=shown,
            tenants=tuple(tenants[:MOST_SHOWN]),
            more_tenants=max(0, len(tenants) - MOST_SHOWN),
            history=tuple(view.history),
            errors=tuple(self._errors.newest_first()),
            playground=self._playground(view, keys),
        )

    def _pool(self, pool: PoolReport, view: View) -> PoolState:
        key = (pool.model, pool.name, pool.target)
        figures = view.figures([key])
        return PoolState(
            name=pool.name,
            model=pool.model,
            target=pool.target,
            ready=pool.ready,
            endpoints=pool.endpoints,
            throughput=throughput_of(pool.endpoints, figures),
            figures=figures,
            money=view.money([key]),
        )

    def _playground(self, view: View, keys: list[PoolKey]) -> PlaygroundState:
        settings = self._settings
        key: Literal["none", "optional", "wanted"] = "optional" if settings.auth.allow_anonymous else "wanted"
        return PlaygroundState(self._why_closed, "none" if settings.is_open else key, tuple(self._chat_models(view, keys)))

    def _chat_models(self, view: View, keys: list[PoolKey]) -> Iterable[ChatModel]:
        snapshot = self._fleet.snapshot
        for model in self._models.values():
            if "generate" in snapshot.tasks(model.served):
                own = [key for key in keys if key[0] == model.served]
                charged = self._charged(model.served)
                yield ChatModel(model.name, snapshot.ready(model.served), charged, view.money(own))

    def _charged(self, model: str) -> Charged | None:
        """The price that holds for the model as a whole; one that a pool has of its own is not known before the answer."""
        prices = self._settings.prices
        of_model = prices.models.get(model)
        if of_model is None or any(key in prices.pools for key in self._pools_of(model)):
            return None
        cached = of_model.prompt if of_model.cached is None else of_model.cached
        return Charged(of_model.prompt, cached, of_model.output)

    def _pools_of(self, model: str) -> set[str]:
        settings = self._settings
        return {e.pool for e in settings.endpoints if e.model == model} | {p.name for p in settings.pools if p.model == model}
