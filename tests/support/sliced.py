"""Boards in memory whose steps and saves run in slices of random budgets."""

from collections.abc import Callable
from random import Random
from typing import Any

from poet_host import isa
from support.memory_board import MemoryBoard, Refused

BUSY = 1
MOST_US = 10_000  # of a budget


class SlicedBoard(MemoryBoard):
    """`between`: called after each slice that does not end the work."""

    def __init__(self, *arguments: Any, seed: int = 1, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.random = Random(seed)
        self.budgets = (0, 0, *(self.random.randint(0, MOST_US) for _ in range(9)))  # microseconds
        self.slices = 0
        self.between: Callable[[MemoryBoard], object] = lambda board: None

    def poll(self, name: str, record: str, *arguments: int) -> dict[str, Any]:
        """Run the unfinished step or save to its end."""
        result = self.ffi.new(f"struct {record} *")
        while True:
            budget = [self.random.choice(self.budgets)] * len(arguments)
            code = getattr(self.lib, f"poet_{name}_poll")(self.state, *budget, result)
            self.slices += 1
            if code != BUSY:
                break
            self.between(self)
        if code:
            raise Refused(code, self.state.detail)
        return isa.unpack(record, bytes(self.ffi.buffer(result)))

    def step(self, step: int, first: int = 0, count: int = 0) -> dict[str, Any]:
        last = self._last()
        if step == last[1] + 1 and (self.sent_after != last or self.state.holds_batch):
            self.send_batch()
        self.call("step_begin", step)
        return self.poll("step", "poet_step_result", 0)

    def save(self) -> dict[str, Any]:
        self.call("save_begin")
        return self.poll("save", "poet_saved")
