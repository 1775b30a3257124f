"""What weights keep of the data that they were trained with, in their file and on a card."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..schema import convert
from .classes import NO_NAMES, Classes, classes_from_json
from .normalization import Normalization


@dataclass(frozen=True)
class DataFacts:
    """Names of classes, and the normalisation of samples (None: unknown)."""

    classes: Classes = NO_NAMES
    normalization: Normalization | None = None

    def to_json(self) -> dict[str, Any]:
        normalization = self.normalization and self.normalization.to_json()
        return {"classes": self.classes.to_json(), "normalization": normalization}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "DataFacts":
        """Return the facts of `to_json`. Raises as `classes_from_json` does."""
        found = value.get("normalization")
        return DataFacts(
            classes_from_json(value.get("classes")),
            None if found is None else convert(found, Normalization, "normalization"),
        )


NO_FACTS = DataFacts()
