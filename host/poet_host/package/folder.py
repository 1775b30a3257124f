"""The folder of a package: its files for each kind of build, and package.json."""

import hashlib
import os
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any

from ..card.weights import load_weights, save_weights
from ..errors import BadInput, PoetError, named
from ..files import read_bytes, read_json, write_json
from ..firmware_build.recipe import recipe, simulated_boards
from ..resources import resource
from ..schedule.schedule import Schedule
from ..schema import convert, of_format
from ..temporary import temporary_folder
from .kinds import KINDS, files_of_kind
from .library import library_files
from .packaged import RAW, Packaged, Raw, identifier
from .sizes import (
    LEARNER_BYTES,
    STACK_BYTES,
    data_bytes,
    flash_bytes,
    infer_waits_us,
    memory_bytes,
    most_storage_blocks,
)
from .source import header, source

FORMAT, VERSION = "poet-package", 1
_FACTS = "package.json"
_MOST_NAME = 255 + len("extras/")  # characters: the longest name of a file on Linux, in its folder


def facts(packaged: Packaged, kind: str) -> dict[str, Any]:
    """Return what package.json states: the values of NAME.h, RAM, and costs on the board.

    Bytes of RAM are those of a processor of 32 bits. Costs that the schedule does not know are
    None.
    """
    schedule, graph = packaged.schedule, packaged.schedule.graph
    step, inference = (it.meta["plan"] for it in (schedule, packaged.forward))
    memory = memory_bytes(packaged, on_storage=True)
    board = schedule.meta.get("board")
    chip = recipe(board).chip if board in simulated_boards() else ""
    return {
        "format": FORMAT, "version": VERSION, "written_by": f"poet-host {version('poet-host')}",
        "name": packaged.name, "for": kind, "model": graph.name,
        "board": board,
        "memory_bytes": memory,
        "memory_bytes_without_storage": memory_bytes(packaged, on_storage=False),
        "learner_bytes": LEARNER_BYTES, "stack_bytes": STACK_BYTES.get(chip),
        "needs_storage": schedule.model.storage,
        "storage_blocks": most_storage_blocks(packaged),
        "raw": vars(packaged.raw), "samples_of_class": packaged.slots, "seed": packaged.seed,
        "normalization": packaged.normalization.to_json(),
        "sample_shape": list(packaged.sample_shape), "sample_bytes": packaged.sample_bytes,
        "sample_values": packaged.sample_values, "outputs": packaged.outputs,
        "autoencoder": packaged.repeats_the_input,
        "classes": packaged.classes, "class_names": packaged.class_names, "batch": packaged.batch,
        "tensors": len(packaged.tensors), "tensor_names": packaged.tensor_names,
        "tensor_bytes": [graph[name].size_bytes for name in packaged.tensors],
        "tensor_cuts": packaged.tensor_cuts,
        "tensor_layouts": packaged.tensor_layouts,
        "data_bytes": data_bytes(packaged), "flash_bytes": flash_bytes(packaged, chip),
        "kernels": sorted(packaged.kernels),
        "longest_slice_us": packaged.longest_slice_us,
        "step_time_us": step.get("time_us"), "step_energy_uj": step.get("total_energy_uj"),
        "inference_time_us": inference.get("time_us"),
        "inference_energy_uj": inference.get("total_energy_uj"),
        "infer_waits_us": infer_waits_us(packaged, chip),
    }  # fmt: skip


def write(packaged: Packaged, kind: str, folder: Path) -> dict[str, Any]:
    """Write a package, and return the content of package.json.

    The folder is replaced at once, if it is a package whose files are unchanged. Files that were
    added to it stay. If the process is killed in between, the next call finds the old folder again.
    Raises BadInput for any other folder that is not empty, and PoetError if it cannot be written.
    """
    if kind not in KINDS:
        raise BadInput(f"a package for {kind!r}: choose one of {', '.join(KINDS)}")
    folder = Path(os.path.realpath(folder))
    if not folder.parent.is_dir():
        raise BadInput(f"{folder} cannot be written: the folder {folder.parent} does not exist")
    old = folder.parent / f"{folder.name}.poet-old"
    stated = facts(packaged, kind)
    texts = files(packaged) | files_of_kind(packaged, kind, stated)
    try:
        if old.is_dir() and _is_free(folder):
            if folder.exists():
                folder.rmdir()
            old.replace(folder)
        added = _added_files(folder)
        with temporary_folder(folder.parent, ".poet-writing-") as private:
            new = private / "new"
            (new / "extras").mkdir(parents=True)
            for name, text in texts.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(text.encode())
            packaged.schedule.save(new / _schedule_file(packaged.name))
            save_weights(
                new / _weights_file(packaged.name), packaged.schedule.graph, packaged.weights
            )
            stated["files"] = {
                name_in(new, it): _sum_of(it) for it in sorted(new.rglob("*")) if it.is_file()
            }
            write_json(new / _FACTS, stated)
            for name in added:
                _copy(folder / name, new / name)
            new.chmod(0o755)
            shutil.rmtree(old, ignore_errors=True)
            if folder.exists():
                folder.replace(old)
            new.replace(folder)
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise PoetError(
            f"{folder} cannot be written ({(error.strerror or str(error)).lower()}): choose a "
            "folder that you may write to, on a disk with space"
        ) from error
    return stated


def load(folder: str | Path) -> Packaged:
    """Return the package in a folder that `write` wrote. Raises BadInput for any other folder."""
    stated = _stated(folder := Path(folder))
    name = stated["name"]
    for path in (_schedule_file(name), _weights_file(name)):
        if not (folder / path).is_file() or _sum_of(folder / path) != stated["files"].get(path):
            raise BadInput(f"{folder / path} is missing or changed: package the schedule again")
    schedule = Schedule.load(folder / _schedule_file(name))
    weights = load_weights(folder / _weights_file(name), schedule.graph)
    raw = convert(stated["raw"], Raw, f"{folder / _FACTS}, raw")
    if raw.type not in RAW:
        raise BadInput(f"{folder / _FACTS}: raw values have an unknown type, {named(raw.type)}")
    return Packaged(name, schedule, weights, raw, stated["samples_of_class"], stated["seed"])


def package_files(package: Path) -> list[Path]:
    """Return the files that `write` wrote; none if `package` is a file, such as a schedule."""
    if not package.is_dir():
        return []
    written = {_FACTS, *_stated(package)["files"]}
    return [it for it in package.rglob("*") if name_in(package, it) in written]


def _stated(folder: Path) -> dict[str, Any]:
    path = folder / _FACTS
    if not path.is_file():
        raise BadInput(f"{folder} is not a package: name a folder that `poet-host package` wrote")
    again = "use the poet-host that wrote it, or package the schedule again"
    found = of_format(read_json(path), FORMAT, (VERSION,), str(path), again)
    stated = convert(found, _Stated, str(path), extra=True)
    if identifier(stated.name) != stated.name or len(_weights_file(stated.name)) > _MOST_NAME:
        raise BadInput(f"{path}: no package has the name {named(stated.name)}: {again}")
    return {**vars(stated)}


@dataclass(frozen=True)
class _Stated:
    """What package.json must state so that the package can be read."""

    name: str
    raw: dict[str, Any]
    samples_of_class: int
    seed: int
    files: dict[str, str]


def _added_files(folder: Path) -> list[str]:
    """Return the files, links and empty folders of a package that `write` did not write.

    Raises BadInput if the folder is not a package and not empty, or if a file of it has changed.
    """
    if _is_free(folder):
        return []
    if not folder.is_dir() or not (folder / _FACTS).is_file():
        raise BadInput(f"{folder} exists and is not a package: name a new or an empty folder")
    written = _stated(folder)["files"]
    found = [name_in(folder, it) for it in folder.rglob("*") if not _has_files(it)]
    for name in found:
        if name in written and _sum_of(folder / name) != written[name]:
            raise BadInput(
                f"{folder / name} was changed after `package` wrote it, and would be lost: copy it "
                "elsewhere, or name another folder"
            )
    return [name for name in found if name not in written and name != _FACTS]


def _is_free(folder: Path) -> bool:
    """Return whether there is no such folder, or an empty one."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def name_in(folder: PurePath, path: PurePath) -> str:
    """Return the name by which package.json lists a file, on each system."""
    return path.relative_to(folder).as_posix()


def _has_files(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and any(path.iterdir())


def _copy(path: Path, to: Path) -> None:
    """Copy a file, a link or an empty folder. Raises BadInput if `to` exists."""
    if os.path.lexists(to):
        raise BadInput(
            f"{path} is in the way of a file of the package: move it elsewhere, or name another "
            "folder"
        )
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        to.mkdir()
    else:
        shutil.copy2(path, to, follow_symlinks=False)


def _sum_of(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


def _schedule_file(name: str) -> str:
    return f"extras/{name}.poet"


def _weights_file(name: str) -> str:
    return f"extras/{name}.safetensors"


def files(packaged: Packaged) -> dict[str, str]:
    """Return the texts of the files that each kind of package has, by path."""
    name = packaged.name
    own = {f"{name}.h": header(packaged), f"{name}_package.c": source(packaged)}
    texts = {f"src/{path}": text for path, text in {**library_files(packaged), **own}.items()}
    return texts | {"LICENSE": resource("LICENSE").read_text("utf-8")}
