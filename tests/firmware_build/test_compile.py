"""What a failed build reports."""

import re
from pathlib import Path

import pytest
from poet_host.errors import PoetError
from poet_host.firmware_build.compile import compiled
from poet_host.firmware_build.native import build_native
from support.compiler import use_small_sources


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("int a = f;\nint b = g;\n", "'f' undeclared"),
        ("int f(void);\nint main(void) { return f(); }\n", "undefined reference to `f'"),
        ("int main(void) { return 0; }\nint big[64];\n", "region `RAM' overflowed by"),
    ],
)
def test_a_failed_build_shows_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, error: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "source.c").write_text(source)
    script = tmp_path / "small.ld"
    script.write_text(
        "MEMORY { RAM (rwx) : ORIGIN = 4096, LENGTH = 160 } SECTIONS { .bss : { *(.bss*) } > RAM }"
    )
    small = ["-static", f"-Wl,-T,{script}"] if "big" in source else []
    with pytest.raises(PoetError, match=re.escape(error)) as caught:
        compiled(
            "broken", ["gcc", "-nostdlib", *small], [tmp_path / "source.c"], missing="no compiler"
        )
    assert "install a compiler" not in str(caught.value)


def test_a_relative_cache_and_an_empty_cc_are_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_sources(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("CC", " ")
    program = build_native()
    assert program.is_relative_to(tmp_path / "cache")
    assert program.exists()
