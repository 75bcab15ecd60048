"""A copy of the catalog that ships, which a test may spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[2] / "configs"


def copy_of_catalog(folder: Path) -> Path:
    root = folder / "catalog"
    for shelf in ("targets", "models", "profiles", "engines", "gate"):
        shutil.copytree(SHIPPED / shelf, root / shelf)
    return root


def spoil(path: Path, old: str, new: str) -> None:
    """Replace one text in a file; it must be there."""
    text = path.read_text()
    assert old in text, f"{path} does not hold {old!r}"
    path.write_text(text.replace(old, new, 1))
