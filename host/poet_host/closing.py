"""A base class for objects that must be closed after use."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager whose `with` block ends with `close`."""

    @abstractmethod
    def close(self) -> None:
        """Release what the object holds. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()
