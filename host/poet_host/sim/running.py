"""A board that runs on this computer, in a process of its own."""

import contextlib
import subprocess
from collections.abc import Mapping, Sequence

from ..closing import Closing

POWER_CUT = "power cut"
POWER_CUT_CODE = 75  # exit code of a board's process after a power cut


class RunningBoard(Closing):
    """A board in the process `process`, with the serial port at the path or URL `port`.

    `port` is empty if the board did not start. Then `ended` is the reason.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that Ctrl-C interrupts only the host program
            env=env,
            pass_fds=pass_fds,
        )
        assert self.process.stdout is not None
        self.port = self.process.stdout.readline().strip()

    @property
    def ended(self) -> str | None:
        """None while the board runs; then POWER_CUT, or the program's error."""
        code = self.process.poll()
        if code is None and not self.port:
            code = self.process.wait()
        if code is None:
            return None
        if code == POWER_CUT_CODE:
            return POWER_CUT
        if self.process.stderr is not None and not self.process.stderr.closed:
            self._reason = self.process.stderr.read().strip() or f"exit code {code}"
            self.process.stderr.close()
        return self._reason

    _reason = ""

    def wait(self, timeout_s: float) -> str | None:
        """Wait up to `timeout_s` for the board to exit, then return `ended`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.ended

    def kill(self) -> None:
        """End the board at once, as a power cut does."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
