"""Files that ask for much: their headers are checked first, and tables are read row by row."""

import io
import os
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from poet_host.data.datasets import load_data
from poet_host.errors import BadInput
from support import whole_runs as runs

GIB = 1 << 30


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    file = io.BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def archive(path: Path, said_bytes: int = 0, **members: bytes) -> Path:
    """An .npz file. `said_bytes`: the size of x that the archive states, if it is not its size."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    if said_bytes:
        raw = bytearray(path.read_bytes())
        at = raw.index(b"PK\x01\x02") + 24  # the uncompressed size, in the directory
        raw[at : at + 4] = said_bytes.to_bytes(4, "little")
        path.write_bytes(raw)
    return path


def peak_bytes(path: Path, message: str) -> int:
    """Return how many bytes are allocated until the file is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=message):
            load_data(path, graph=runs.digits())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


Y = header((4,), "<i4") + bytes(16)
X_OF_1_GIB = (GIB // 256, 1, 8, 8)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (header(X_OF_1_GIB), "x has 4,194,304 samples, but y has 4"),
        (header((GIB // 4,)), r"x has shape \(268435456,\)"),
        (header((GIB // 8,), "<U2"), r"x has shape \(134217728,\)"),
        (header((GIB // 1024, 1, 8, 8), "<U1"), "x holds <U1"),
        (header((10**12, 1, 8, 8)), "announces 256,000,000,000,000 bytes"),
        (header((-(GIB // 256), -1, 8, 8)), r"not a readable \.npz"),
    ],
)
def test_headers_are_checked_before_data_is_unpacked(
    tmp_path: Path, x: bytes, message: str
) -> None:
    path = tmp_path / "a.npz"
    said = GIB + len(header(X_OF_1_GIB)) + 64
    assert peak_bytes(archive(path, said, x=x, y=Y), message) < 1 << 22


def test_headers_of_a_folder_are_checked_before_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "y.npy").write_bytes(Y)
    with (tmp_path / "x.npy").open("wb") as file:
        file.truncate(file.write(header(X_OF_1_GIB)) + GIB)
    assert peak_bytes(tmp_path, "x has 4,194,304 samples") < 1 << 22
    (tmp_path / "x.npy").write_bytes(header(X_OF_1_GIB) + bytes(64))
    assert peak_bytes(tmp_path, r"x\.npy: a header announces") < 1 << 22


def test_a_file_of_one_large_array_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        file.truncate(file.write(header(X_OF_1_GIB)) + GIB)
    assert peak_bytes(tmp_path / "x.npy", "a single array") < 1 << 22


def test_an_archive_of_many_entries_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "many.npz", "w") as file:
        for number in range(10_001):
            file.writestr(f"{number}.npy", b"")
    with pytest.raises(BadInput, match="10,001 entries"):
        load_data(tmp_path / "many.npz")


@pytest.mark.parametrize("name", ["x", "x.csv", "x.npz"])
def test_devices_and_pipes_are_not_read_as_data(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    (tmp_path / f"zero-{name}").symlink_to("/dev/zero")
    for path in (tmp_path / name, tmp_path / f"zero-{name}"):
        with pytest.raises(BadInput, match="is a device or a pipe"):
            load_data(path)
    (tmp_path / "y.npy").write_bytes(Y)
    (tmp_path / "x.npy").symlink_to("/dev/zero")
    with pytest.raises(BadInput, match="is a device or a pipe"):
        load_data(tmp_path)


# Tables.


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("9" * 9_000_000 + ",1,2\n", "line 2: the line has more than"),
        ("1," * 4_500_000 + "1\n", "line 2: the line has more than"),
        ('"' + "9" * 200_000 + '",1,2\n', "line 2: this is not valid CSV"),
        ('"' + "9\n" * 2_000_000, "line 2: this is not valid CSV"),
    ],
)
def test_long_lines_and_fields_are_refused(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("1,2,0\n" + row + "1,2,0\n" * 1000)
    assert peak_bytes(path, message) < 64 << 20


def test_more_words_than_classes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("".join(f"1,w{number}\n" for number in range(1 << 17)))
    with pytest.raises(BadInput, match=r"t\.csv, line 65537: .* 65,536 different words"):
        load_data(path)


@pytest.mark.parametrize("words", [False, True])
def test_a_table_takes_little_more_memory_than_its_numbers(tmp_path: Path, words: bool) -> None:
    """As a process, because an allocation of NumPy or of Python counts alike."""
    path, rows = tmp_path / "t.csv", 300_000
    labels = "ant", "bee"
    lines = (f"{i / 7:.9f},{i % 31:.9f},{labels[i % 2] if words else i % 2}\n" for i in range(rows))
    path.write_text("".join(lines))
    program = (
        "import resource, sys; from poet_host.data.datasets import load_data\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "load_data('synthetic:3:2'); before = used()\n"
        "data = load_data(sys.argv[1]); print(len(data.x), used() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    count, grown_kib = map(int, done.stdout.split())
    assert count == rows
    assert grown_kib * 1024 < 4 * path.stat().st_size  # lists of its cells take 18 times as much
