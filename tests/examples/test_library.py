"""The example library: a program for a computer learns, as its README says."""

from pathlib import Path

from support.example import EXAMPLES, run_page


def test_the_commands_of_its_page_end_with_a_learned_model(tmp_path: Path) -> None:
    page = EXAMPLES / "library" / "README.md"
    printed = run_page(page, tmp_path)
    lines = [line for line in printed.splitlines() if line.startswith("gesture ")]
    assert len(lines) == 3
    for number, line in enumerate(lines):
        outputs = [float(text) for text in line.split()[2:]]
        assert outputs.index(max(outputs)) == number
    assert printed.endswith(page.read_text("utf-8").partition("```text\n")[2].partition("```")[0])
