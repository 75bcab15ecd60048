"""The settings of the gate's controller, one YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from serving.core.errors import ConfigurationError
from serving.fleet_settings import KubernetesSettings
from serving.setting_types import Seconds, Section
from serving.strict_yaml import read_yaml

_ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,45}[a-z0-9])?$")]
_Text = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(ge=1, le=65535)]


class LeaseSettings(Section):
    """Of two controllers one leads: the one whose Lease it is, for as long as it renews it."""

    seconds: Seconds = 15.0
    """After so long without a renewal another one takes over."""
    renew_within_seconds: Seconds = 10.0
    """A leader that could not renew for so long stops, before another one can have begun."""
    period_seconds: Seconds = 3.0
    """Between two renewals, and between two looks of one that waits."""

    @model_validator(mode="after")
    def _in_order(self) -> LeaseSettings:
        if not self.period_seconds < self.renew_within_seconds < self.seconds:
            raise ValueError("must be period_seconds < renew_within_seconds < seconds, or two controllers could lead at once")
        return self


class GatekeeperSettings(Section):
    """What the controller watches, where it writes, and how it judges."""

    namespace: _ObjectName
    name: _ObjectName
    """What its Lease and its records are named after."""
    selector: _Text = "serving/gated=true"
    """Of the pods to look at, as kubectl takes it; only those with the readiness gate serving/quality are judged."""
    owner: _ObjectName | None = None
    """A ConfigMap with which the records go: when it is deleted, so are they."""
    kubernetes: KubernetesSettings = KubernetesSettings()
    lease: LeaseSettings = LeaseSettings()
    pools: dict[str, tuple[_Text, ...]] = Field(default_factory=dict)
    """By pool: the words for `serving gate run` behind the candidate's address, as its references and thresholds."""
    engine_secret_file: Path | None = None
    """The secret that engines ask of whoever asks them."""
    run_seconds: Seconds = 3600.0
    """How long one run of the gate may take."""
    runs_at_once: Annotated[int, Field(ge=1, le=100)] = 2
    """Configurations that are judged at the same time."""
    retry_seconds: Seconds = 60.0
    """Until a run that broke off is begun again; twice as long each time, up to 32 times."""
    host: str = "0.0.0.0"
    port: Port = 9000
    """Where /metrics and /livez are."""


def load_gatekeeper_settings(path: Path) -> GatekeeperSettings:
    """Raises: ConfigurationError, naming the file and the field."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}: must be a mapping of settings")
    try:
        return GatekeeperSettings.model_validate(data)
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(map(str, problem['loc']))}: {str(problem['msg']).removeprefix('Value error, ')}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigurationError("\n".join(lines)) from None
