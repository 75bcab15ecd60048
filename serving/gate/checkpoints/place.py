"""The folder that a command was told to write: whole or not at all, never over another, and nothing left beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from serving.core.errors import ConfigurationError
from serving.engines.model_store import keep


def require_new(out: Path) -> None:
    """Before any work. Raises: ConfigurationError."""
    if out.exists():
        raise ConfigurationError(f"{out}: is there already; give a folder that is not")


def write_folder(out: Path, build: Callable[[Path], None], report: Callable[[str], None]) -> None:
    """`build` fills an empty folder, which then gets its digests and its name.

    Raises:
        ConfigurationError: `out` is there, or cannot be written.
    """
    require_new(out)
    is_built = False

    def building(folder: Path) -> None:
        nonlocal is_built
        build(folder)
        is_built = True

    try:
        keep(out, building, report)
    except OSError as error:
        raise ConfigurationError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            out.with_name(f"{out.name}.lock").unlink()
    if not is_built:
        raise ConfigurationError(f"{out}: another process has just written it")
