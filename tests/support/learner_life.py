"""The life of a device that learns, through power cuts, with every trace that may be true."""

from dataclasses import dataclass, field

from poet_host.data.taught import Taught
from support.learner_bench import Device, Kind, Learner, StorageFailed, Trace, blocks, outputs_of
from support.memory_board import SURVIVE

STEPS = 24  # of the quick tests


@dataclass
class Life:
    """It teaches sample by sample, trains to step `steps`, and saves now and then.

    `traces`: what may have been taught. A `teach` that the power ended has kept its sample or not.
    """

    kind: Kind
    unit: int
    steps: int = STEPS
    taught: int = 0
    saved: int = 0  # the step that was committed last, as the device said
    traces: list[Trace] = field(default_factory=list)
    unsure: list[Trace] = field(default_factory=list)  # those with the sample that is being taught

    def __post_init__(self) -> None:
        self.traces = [Trace(self.kind)]

    def device(self, cut_at: int | None = None) -> Device:
        device = Device(blocks(self.kind, self.unit), self.unit)
        device.cut_at = cut_at
        return device

    def begin(self, device: Device, budget_us: int = 0) -> None:
        """Go on until step `steps`."""
        learner = Learner(self.kind, device)
        self.check(learner)
        while (step := learner.state().step) < self.steps:
            while self.taught < 2 + step:
                self.teach(learner)
            learner.learn(1)
            learner.run(budget_us)
            self.infer(learner)
            if step % 5 == 4:
                learner.save()
            self.saved = learner.state().saved_step
        learner.save()
        self.check(learner)
        assert learner.state().saved_step == learner.state().step == self.steps

    def teach(self, learner: Learner) -> None:
        label = self.taught * 7 % 5 % self.kind.classes
        sample, entry = self.kind.sample(self.taught), Taught(label, learner.state().next_step)
        self.unsure = [Trace(self.kind, [*it.x, sample], [*it.taught, entry]) for it in self.traces]
        if learner.teach(sample, label):
            self.traces = self.unsure
            self.taught += 1
        else:
            learner.poll()
        self.unsure = []

    def infer(self, learner: Learner) -> None:
        sample = self.kind.sample(5)
        outputs = learner.infer(sample)
        assert outputs.tobytes() == outputs_of(self.kind, learner.weights(), sample).tobytes()

    def power_is_cut(self) -> None:
        """Go on with the next sample, if one was being taught."""
        self.taught += bool(self.unsure)
        self.traces += self.unsure
        self.unsure = []

    def check(self, learner: Learner) -> None:
        """Leave out the traces that do not give the device's weights; one must.

        A step that was committed must not be lost, whatever failed after it.
        """
        weights, step = learner.weights(), learner.state().step
        assert step >= self.saved
        self.traces = [it for it in self.traces if it.replay(step) == weights]
        assert self.traces, step


def cut(kind: Kind, unit: int, cut_at: int, survive: str = "all", steps: int = STEPS) -> bool:
    """Cut the power at a write or erase, and then go on. Return False if it has fewer of them."""
    life = Life(kind, unit, steps)
    device = life.device(cut_at)
    device.survive = SURVIVE[survive]
    try:
        life.begin(device)
    except StorageFailed:
        pass
    else:
        return False
    life.power_is_cut()
    life.begin(Device(0, unit, device.after_the_cut()))
    return True
