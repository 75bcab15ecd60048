"""Fields of a model's `config.json`, each read strictly: what is missing, zero or of another type is one clear error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.core.errors import ConfigurationError

MOST = 2**40
"""Beyond it no size of a model has a meaning."""


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The file's fields, with its name for errors. Null is the same as left out, as the files' own readers take it."""

    file: object
    values: Mapping[str, Any]

    def error(self, field: str, what: str) -> ConfigurationError:
        return ConfigurationError(f"{self.file}: {field}: {what}")

    def get(self, field: str) -> Any:
        return self.values.get(field)

    def count(self, field: str, least: int = 1) -> int:
        """Raises: ConfigurationError: it is no whole number of `least` or more."""
        value = self.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
            shown = f"one beyond {MOST}" if isinstance(value, int) and abs(value) > MOST else repr(value)
            raise self.error(field, f"must be a whole number of {least} or more, not {shown}")
        return value

    def count_if_said(self, field: str, least: int = 1) -> int | None:
        return None if self.get(field) is None else self.count(field, least)

    def first_count(self, *fields: str) -> int:
        """Of the first field that is there; 0 where none is."""
        return next((self.count(field, least=0) for field in fields if self.get(field) is not None), 0)

    def flag(self, field: str, otherwise: bool) -> bool:
        value = self.get(field)
        if value is not None and not isinstance(value, bool):
            raise self.error(field, f"must be true or false, not {value!r}")
        return otherwise if value is None else value

    def texts(self, field: str) -> list[str] | None:
        """A list of texts; None where it is left out."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.error(field, f"must be a list of texts, not {value!r}")
        return value

    def numbers(self, field: str) -> list[int] | None:
        """A list of whole numbers; None where it is left out."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.error(field, f"must be a list of whole numbers, not {value!r}")
        return value
