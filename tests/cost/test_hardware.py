"""One price for each machine: the pool's own, else the settings' for its target, else the catalog's, else none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serving.core.errors import ConfigurationError
from serving.cost.bill import Bill
from serving.cost.hardware import Hardware, Machines, catalog_targets
from serving.machine_settings import TargetSettings
from serving.settings import Settings, catalog_dir

CATALOG = {"b200": TargetSettings(dollars_per_accelerator_hour=3.7, power_watts=1000)}


def settings_of(pools: dict[str, Any] | None = None, **sections: Any) -> Settings:
    endpoints = [{"name": f"{t}-1", "url": f"http://{t}:1", "model": "m", "pool": t, "target": t} for t in ("b200", "own")]
    return Settings.model_validate({"endpoints": endpoints, "routing": {"pools": pools or {}}, **sections})


def test_the_catalogs_price_holds_until_somebody_says_another() -> None:
    machines = Machines(settings_of({"b200": {"accelerators": 8}}), CATALOG)
    assert machines.of("b200", "b200") == Hardware(8, 3.7, 1000)
    assert machines.of("b200", "b200").dollars_per_hour == pytest.approx(29.6)
    targets = {"b200": {"dollars_per_accelerator_hour": 2.0}}
    assert Machines(settings_of(targets=targets), CATALOG).of("b200", "b200") == Hardware(1, 2.0, 1000)


def test_a_pools_own_price_goes_over_its_targets() -> None:
    pools = {"b200": {"accelerators": 4, "dollars_per_hour": 20.0}}
    machines = Machines(settings_of(pools, targets={"b200": {"dollars_per_accelerator_hour": 2.0}}), CATALOG)
    assert machines.of("b200", "b200").dollars_per_accelerator_hour == 5.0


def test_what_nobody_says_is_unknown_and_not_nothing() -> None:
    hardware = Machines(settings_of(), CATALOG).of("own", "own")
    assert (hardware.accelerators, hardware.dollars_per_hour, hardware.watts_per_accelerator) == (1, None, None)


def test_a_pool_of_several_targets_has_a_price_for_each() -> None:
    endpoints = [{"name": t, "url": f"http://{t}:1", "model": "m", "target": t} for t in ("b200", "mi355x")]
    catalog = CATALOG | {"mi355x": TargetSettings(dollars_per_accelerator_hour=2.9)}
    machines = Machines(Settings.model_validate({"endpoints": endpoints}), catalog)
    assert [machines.of("default", t).dollars_per_hour for t in ("b200", "mi355x")] == [3.7, 2.9]


def test_an_elastic_pool_needs_a_price_from_anywhere() -> None:
    Machines(settings_of({"b200": {"elastic": True}}), CATALOG)
    with pytest.raises(ConfigurationError, match=r"routing\.pools\.own: .* targets\.own\.dollars_per_accelerator_hour"):
        Machines(settings_of({"own": {"elastic": True}}), CATALOG)


def test_a_target_that_nothing_runs_on_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """One list of prices may serve many gateways, and a name that is misspelt must not go unseen."""
    Machines(settings_of(targets={"b20": {"dollars_per_accelerator_hour": 2.0}}), CATALOG)
    assert "targets.b20: nothing runs on it; endpoints and pools run on b200, own" in caplog.text


def test_the_catalog_is_read_for_what_is_named_and_passes_over_what_it_does_not_have(tmp_path: Path) -> None:
    found = catalog_targets(catalog_dir(), ["rocm-mi355x", "own"])
    assert found == {"rocm-mi355x": TargetSettings(dollars_per_accelerator_hour=2.9, accelerators_per_node=8, power_watts=1400)}
    assert catalog_targets(tmp_path, ["rocm-mi355x"]) == {}


# The bill


class Counted:
    def __init__(self) -> None:
        self.now = 0.0
        self.endpoints = {("m", "b200", "b200"): 1, ("m", "own", "own"): 1}

    def bill(self) -> Bill:
        machines = Machines(settings_of({"b200": {"accelerators": 8}}), CATALOG)
        return Bill(lambda: dict(self.endpoints), machines, clock=lambda: self.now)


def test_the_bill_is_price_times_accelerators_times_time() -> None:
    counted = Counted()
    bill = counted.bill()
    counted.now = 1800.0
    counted.endpoints["m", "b200", "b200"] = 3
    bill.look()
    assert dict(bill.dollars()) == {("m", "b200", "b200"): pytest.approx(0.5 * 29.6)}, "one until then, and no price of the other"
    counted.now = 3600.0
    bill.look()
    assert dict(bill.dollars()) == {("m", "b200", "b200"): pytest.approx(0.5 * 29.6 + 0.5 * 3 * 29.6)}
    assert dict(bill.accelerators()) == {("m", "b200", "b200"): 24.0, ("m", "own", "own"): 1.0}
    assert dict(bill.prices()) == {("m", "b200", "b200"): 3.7}
    assert dict(bill.watts()) == {("m", "b200", "b200", "estimated"): 24_000.0}


def test_a_pool_without_endpoints_costs_nothing_more() -> None:
    counted = Counted()
    bill = counted.bill()
    counted.endpoints["m", "b200", "b200"] = 0
    bill.look()
    counted.now = 3600.0
    bill.look()
    assert dict(bill.dollars()) == {("m", "b200", "b200"): 0.0}
    assert dict(bill.accelerators())["m", "b200", "b200"] == 0.0
