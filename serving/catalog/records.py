"""What every record of the catalog is built from: the frozen base and the small types of its fields."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

EngineBuild = Literal["cpu", "rocm", "cuda"]
Format = Literal["bf16", "int8", "int4", "fp8", "mxfp4", "mxfp4-w4a16", "nvfp4"]
"""Of weights. `mxfp4` computes with 4-bit activations too, `mxfp4-w4a16` (gpt-oss) with wider ones."""
BITS: dict[Format, float] = {
    "bf16": 16, "fp8": 8, "int8": 8, "int4": 4.25, "mxfp4": 4.25, "mxfp4-w4a16": 4.25, "nvfp4": 4.5,
}  # fmt: skip
"""Of a parameter, scales included: MXFP4 has one of 8 bits for 32 values, NVFP4 one of 8 bits for 16."""
KvFormat = Literal["bf16", "fp8"]
Precision = Literal["fp4", "fp8", "bf16"]
"""In which the matrix units compute."""
Status = Literal["untested", "simulated", "measured"]

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
Text = Annotated[str, Field(min_length=1)]
Date = Annotated[str, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?$")]
Count = Annotated[int, Field(ge=1)]
Bytes = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Record(BaseModel):
    """Base of everything read from a catalog file: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
