"""The settings of what machines cost and draw, by target."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from serving.setting_types import Section

DollarsPerHour = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Watts = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class TargetSettings(Section):
    """One target: what is given here takes the place of the catalog's figure; what neither says is unknown, never 0."""

    dollars_per_accelerator_hour: DollarsPerHour | None = None
    """What one accelerator costs; `routing.pools.NAME.dollars_per_hour` goes over it for one pool."""
    accelerators_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Of a whole node, so that figures of targets compare node by node."""
    power_watts: Watts | None = None
    """Highest rated power of one accelerator."""
