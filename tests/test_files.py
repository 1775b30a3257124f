"""Files are written whole, and problems with them name the file."""

import os
from pathlib import Path

import pytest
from poet_host.errors import BadInput, PoetError
from poet_host.files import is_stream, read_bytes, read_json, read_text, write_whole
from poet_host.sim.native import create_storage


def test_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "größe.json"
    write_whole(path, '{"a": "ä"}')
    assert read_json(path) == {"a": "ä"}
    write_whole(str(path), b"\x00\x01")
    assert read_bytes(path) == b"\x00\x01"
    assert [item.name for item in tmp_path.iterdir()] == ["größe.json"]


def test_a_name_may_be_as_long_as_a_folder_takes(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_whole(path, "new")
    create_storage(tmp_path / ("y" * 255), 64 << 20)
    assert read_text(path) == "new"
    assert {len(item.name) for item in tmp_path.iterdir()} == {255}


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept"
    write_whole(path, "old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(PoetError, match="kept cannot be written"):
        write_whole(path, "new")
    assert read_text(path) == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["kept"]


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    ordinary, mine = tmp_path / "ordinary", tmp_path / "mine"
    ordinary.write_text("")
    write_whole(mine, "")
    assert mine.stat().st_mode == ordinary.stat().st_mode
    mine.chmod(0o600)
    write_whole(mine, "again")
    assert mine.stat().st_mode & 0o777 == 0o600


def test_links_stay_and_streams_are_written_through(tmp_path: Path) -> None:
    """As /dev/null and /dev/stdout, which must be there afterwards."""
    (tmp_path / "to").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "to" / "file")
    for text in ("new", "again"):
        write_whole(link, text)
        assert link.is_symlink()
        assert read_text(tmp_path / "to" / "file") == text
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert is_stream(tmp_path / "pipe")
    with pytest.raises(PoetError, match=r"/dev/full cannot be written.*free some space"):
        write_whole("/dev/full", "x")
    assert is_stream(Path("/dev/full"))


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_redirected_output_keeps_what_other_commands_have_written(
    tmp_path: Path, mode: str
) -> None:
    """As of `command -o /dev/stdout`, whose stdout is a file in the shell."""
    path = tmp_path / "all.csv"
    with path.open(mode, buffering=0) as file:
        file.write(b"a")
        link = tmp_path / "link"
        link.symlink_to(f"/dev/fd/{file.fileno()}")
        for name in (link, Path(f"/dev/fd/{file.fileno()}")):
            assert is_stream(name)
            write_whole(name, "b")
        file.write(b"c")
    assert path.read_bytes() == b"abbc"
    with path.open("rb") as file, pytest.raises(PoetError, match="cannot be written"):
        write_whole(f"/dev/fd/{file.fileno()}", "x")
    assert path.read_bytes() == b"abbc"


def test_problems_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(PoetError, match="a folder that exists"):
        write_whole(tmp_path / "no" / "file", "")
    with pytest.raises(BadInput, match="gone cannot be read"):
        read_bytes(tmp_path / "gone")
    with pytest.raises(BadInput, match="is a directory"):
        read_bytes(tmp_path)
    path = tmp_path / "x"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="UTF-8"):
        read_text(path)
    path.write_text('{"a":\n1,}')
    with pytest.raises(BadInput, match="x, line 2: this is not JSON"):
        read_json(path)
    path.write_text("[" * 100_000)
    with pytest.raises(BadInput, match="nested too deeply"):
        read_json(path)
    path.write_text("[1" + "0" * 5000 + "]")
    with pytest.raises(BadInput, match="too many digits"):
        read_json(path)
    path.write_text('[{"a": 1, "b": {"ü": 2, "c": 3, "ü": 2}}]', encoding="utf-8")
    with pytest.raises(BadInput, match='x: an object has the key "ü" twice'):
        read_json(path)


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_text(path) == '{"a": 1}'
    assert read_json(path) == {"a": 1}


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(BadInput, match=f"{path} is a device or a pipe"):
            read_bytes(path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # which needs no space on the disk
    with pytest.raises(BadInput, match="large has 1,099,511,627,776 bytes"):
        read_text(tmp_path / "large")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes links of other users")
@pytest.mark.parametrize("victim", ["kept", "/dev/null"])
def test_a_link_of_another_user_in_a_shared_folder_is_replaced(tmp_path: Path, victim: str) -> None:
    shared, kept = tmp_path / "shared", tmp_path / "kept"
    shared.mkdir()
    shared.chmod(0o1777)
    kept.write_text("old")
    link, between = shared / "link", tmp_path / "between"
    for first in (link, between):  # named itself, or through a link that may be followed
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / victim)
        os.lchown(link, 1234, 1234)
        if first == between:
            between.symlink_to(link)
        write_whole(first, "new")
        assert not link.is_symlink()
        assert read_text(link) == "new"
        assert kept.read_text() == "old"
    link.unlink()
    link.symlink_to(kept)  # a link of this user
    write_whole(link, "new")
    assert link.is_symlink()
    assert kept.read_text() == "new"
