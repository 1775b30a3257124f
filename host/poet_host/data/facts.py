"""What weights keep of the data that they were trained with, in their file and on a card."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..schema import convert
from .classes import NO_NAMES, Classes, classes_from_json
from .normalization import Normalization


@dataclass(frozen=True)
class DataFacts:
    """Names of classes, normalisation of samples, and the rate of sounds (None: unknown)."""

    classes: Classes = NO_NAMES
    normalization: Normalization | None = None
    sample_rate_hz: int | None = None  # to which sounds were resampled

    def to_json(self) -> dict[str, Any]:
        normalization = self.normalization and self.normalization.to_json()
        rate = {"sample_rate_hz": self.sample_rate_hz} if self.sample_rate_hz else {}
        return {"classes": self.classes.to_json(), "normalization": normalization, **rate}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "DataFacts":
        """Return the facts of `to_json`. Raises as `classes_from_json` does."""
        found, rate = value.get("normalization"), value.get("sample_rate_hz")
        return DataFacts(
            classes_from_json(value.get("classes")),
            None if found is None else convert(found, Normalization, "normalization"),
            None if rate is None else convert(rate, int, "sample_rate_hz"),
        )


NO_FACTS = DataFacts()
