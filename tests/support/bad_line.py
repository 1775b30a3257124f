"""A serial line that spoils frames on their way to a board and back."""

import os
import select

from support.pty_peer import PtyPeer

DAMAGES = ("lost", "cut", "flipped", "twice", "late")


class BadLine(PtyPeer):
    """A line to the board at a pty. It spoils every second reply and every third request.

    Damage `late`: a reply arrives after the reply to the next request, and a request not at all.
    """

    def __init__(self, board_port: str, damage: str) -> None:
        self.damage = damage
        self.spoiled = 0
        self._late = b""
        self._board = os.open(board_port, os.O_RDWR | os.O_NOCTTY)
        super().__init__()

    def unplug(self) -> None:
        super().unplug()
        os.close(self._board)

    def _serve(self) -> None:
        counts = {self._master: 0, self._board: 0}
        rests = {self._master: b"", self._board: b""}
        while self._open:
            for end in select.select(list(rests), [], [], 0.02)[0]:
                *frames, rests[end] = (rests[end] + os.read(end, 1 << 16)).split(b"\0")
                for frame in filter(None, frames):
                    counts[end] += 1
                    if end == self._master:
                        spoils = counts[end] % 3 == 0
                        self._pass_to(self._board, self._spoil(frame) if spoils else frame + b"\0")
                    elif counts[end] % 2:
                        self._pass_to(self._master, frame + b"\0" + self._late)
                        self._late = b""
                    else:
                        self._pass_to(self._master, self._spoil(frame))
                        self._late = frame + b"\0" if self.damage == "late" else b""

    def _spoil(self, frame: bytes) -> bytes:
        self.spoiled += 1
        head, rest = frame[: len(frame) // 2], frame[len(frame) // 2 :] + b"\0"
        return {
            "lost": b"",
            "cut": head + b"\0",
            "flipped": head + bytes([rest[0] ^ 0x80 or 1]) + rest[1:],
            "twice": head + rest + head + rest,
            "late": b"",
        }[self.damage]
