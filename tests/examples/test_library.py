"""The example library: a program for a computer learns, as its README says."""

import os
import re
import subprocess
from pathlib import Path

from support.example import EXAMPLES, PATH


def test_the_commands_of_its_page_end_with_a_learned_model(tmp_path: Path) -> None:
    page = (EXAMPLES / "library" / "README.md").read_text()
    found = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert found
    environment = {**os.environ, "PATH": PATH, "EXAMPLES": str(EXAMPLES)}
    ran = subprocess.run(["sh", "-e"], input=found[1], cwd=tmp_path, env=environment, check=False,
                         capture_output=True, text=True, timeout=300)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith("gesture ")]
    assert len(lines) == 3
    for number, line in enumerate(lines):
        outputs = [float(text) for text in line.split()[2:]]
        assert outputs.index(max(outputs)) == number
    assert ran.stdout.endswith("Done.\n")
