"""Folders of images and of sounds: a sample is a file, and its class is the name of its folder."""

from collections.abc import Callable, Iterator
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import BadInput, listed, quoted
from ..graph.graph import Graph
from ..graph.weights import Array
from .files import Arrays
from .shapes import learns_samples, shape_text

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff")
SOUNDS = (".flac", ".ogg", ".wav")
SAMPLE_RATE_HZ = 16_000
_HELD_OUT = ("test", "val", "valid", "validation")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # of Pillow, by the number of channels
_SMALLEST = 1e-6  # added before the logarithm: silence is -13.8
Reader = Callable[[Path], Array]
Media = Literal["images", "sounds", "spectrograms"]


def time_axis(shape: tuple[int, ...]) -> int:
    """Return the axis of a sample that is time: the longer of the last two, the first of equals."""
    return len(shape) - (2 if len(shape) > 1 and shape[-2] >= shape[-1] else 1)


def _are_waves(shape: tuple[int, ...]) -> bool:
    """Return whether a sample of sound is the sound itself, not a spectrogram."""
    return len(shape) < 2 or min(shape[-2:]) < 2


def has_media(path: Path) -> bool:
    """Return True if a folder has no arrays, but images or sounds, directly or in folders."""
    return not any(path.glob("*.npy")) and any(_files(path))


def read_media(
    path: Path, graph: Graph | None, labels: bool, sample_rate_hz: int = SAMPLE_RATE_HZ
) -> tuple[Arrays, tuple[str, ...], Media]:
    """Read a folder of images, or one of sounds.

    Return its arrays, the names of its classes, and what the samples are.

    The files of a class are in the folder `path/CLASS`, or in `path/train/CLASS` and
    `path/test/CLASS` (or val), which holds samples out. If labels are not needed (`labels` is
    False, or the model learns its samples), they may be in `path` itself. Images become float32
    from 0 to 1, resized to the model's height and width. Sounds are resampled to `sample_rate_hz`,
    and become what the model takes: samples from -1 to 1, or a log-mel spectrogram.
    Raises BadInput for anything else, and if a package that reads the files is missing.
    """
    where = f"data {path}"
    if graph is None:
        raise BadInput(f"{where}: images and sounds are read for a model: pass its graph")
    kinds = {file.suffix.lower() in SOUNDS for file in _files(path)}
    if len(kinds) > 1:
        raise BadInput(f"{where}: the folder has images and sounds: use a folder for each")
    media: Media = "images"
    if are_sounds := kinds.pop():
        media = "sounds" if _are_waves(graph[graph.data].shape[1:]) else "spectrograms"
    read = (_sounds if are_sounds else _images)(where, graph, sample_rate_hz)
    folders = {it.name.lower(): it for it in _folders(path) if any(_files(it))}
    held = [name for name in _HELD_OUT if name in folders]
    others = sorted(folders.keys() - {"train", *held[:1]})
    is_split = "train" in folders and (
        bool(held) or (not others and any(_folders(folders["train"])))
    )
    if is_split and others:
        raise BadInput(
            f"{where}: the folder has {', '.join(sorted(folders))}: samples are held out in one "
            f"folder only, so move {' and '.join(others)} out of it"
        )
    halves = {"": folders["train"] if is_split else path}
    if is_split and held:
        halves["_test"] = folders[held[0]]
    if not labels or learns_samples(graph):
        return {
            f"x{half}": _read(where, sorted(_files(it)), read, graph) for half, it in halves.items()
        }, (), media  # fmt: skip
    found = {
        half: {own.name: inside for own in _folders(folder) if (inside := sorted(_files(own)))}
        for half, folder in halves.items()
    }
    if not (names := tuple(found[""])):
        raise BadInput(
            f"{where}: the files are not in folders. Put the files of each class into a folder "
            "with its name, such as cat/1.png"
        )
    own_folders = {halves[""] / name for name in names}
    if own_folders.isdisjoint(file.parent for files in found[""].values() for file in files):
        advice = (
            "Put files directly into the folders of their classes, such as train/cat/1.png and "
            "test/cat/2.png"
        )
        if len(names) == 1 and not is_split:
            advice = f"Name the folder {path / names[0]} instead"
        raise BadInput(
            f"{where}: no file lies directly in the folder of a class ({listed(names)}), but all "
            f"in folders below. {advice}"
        )
    arrays: Arrays = {}
    for half, by_class in found.items():
        if new := by_class.keys() - found[""].keys():
            raise BadInput(
                f"{where}: the class {quoted(min(new))} occurs only in {halves[half].name}: add "
                "samples of it for training, or remove it"
            )
        files = [(label, f) for label, name in enumerate(names) for f in by_class.get(name, [])]
        arrays[f"y{half}"] = np.array([label for label, _ in files], int)
        arrays[f"x{half}"] = _read(where, [f for _, f in files], read, graph)
    return arrays, names, media


def _folders(path: Path) -> list[Path]:
    """Return the folders in a folder, in alphabetical order. Whole numbers are in their order."""
    found = (it for it in path.iterdir() if it.is_dir() and not it.name.startswith("."))
    return sorted(found, key=lambda it: (_number(it.name), it.name))


def _number(name: str) -> float:
    return int(name) if name.isdecimal() else inf


def _files(path: Path) -> Iterator[Path]:
    for file in path.rglob("*"):
        is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.suffix.lower() in IMAGES + SOUNDS and not is_hidden:
            yield file


def _read(where: str, files: list[Path], read: Reader, graph: Graph) -> Array:
    shape = graph[graph.data].shape[1:]
    try:
        x = np.empty((len(files), *shape), np.float32)
    except (MemoryError, ValueError) as error:
        raise BadInput(
            f"{where}: {len(files):,} samples of shape {shape_text(shape)} do not fit into the "
            "memory of this computer: use fewer files"
        ) from error
    for sample, file in zip(x, files, strict=True):
        try:
            sample[...] = read(file)
        except Exception as error:  # the packages raise many kinds for bad files
            raise BadInput(
                f"data {file}: the file cannot be read ({quoted(str(error) or repr(error))}): "
                "replace or remove it"
            ) from error
    return x


def _images(where: str, graph: Graph, _: int) -> Reader:
    shape = graph[graph.data].shape[1:]
    if len(shape) != 3 or shape[0] not in _MODES or graph[graph.data].dtype != "float32":
        raise BadInput(
            f"{where}: {graph.name} takes samples of shape {shape_text(shape)}, not images of "
            "shape (channels, height, width) with 1, 3 or 4 channels: use a model for images"
        )
    channels, height, width = shape
    pillow = _package("PIL.Image", "images", where)
    transpose = import_module("PIL.ImageOps").exif_transpose

    def upright(image: Any) -> Any:
        """Return a photo as its camera was held, or as it is if the note of that is damaged."""
        try:
            return transpose(image)
        except Exception:  # noqa: BLE001 - of many kinds
            return image

    def read(file: Path) -> Array:
        with pillow.open(file) as image:
            if image.mode[0] in "IF":  # Pillow would make all values above 255 white
                raise ValueError("a channel has more than 8 bits: convert the image to 8 bits")
            whole = upright(image).convert(_MODES[channels])
            sized = whole.resize((width, height), pillow.BILINEAR)
            values = np.asarray(sized, np.float32) / np.float32(255)
        return values.reshape(height, width, channels).transpose(2, 0, 1)

    return read


def _sounds(where: str, graph: Graph, rate_hz: int) -> Reader:
    shape = graph[graph.data].shape[1:]
    is_wave = _are_waves(shape)
    outer = shape[:-1] if is_wave else shape[:-2]
    if set(outer) - {1} or not shape or graph[graph.data].dtype != "float32":
        raise BadInput(
            f"{where}: {graph.name} takes samples of shape {shape_text(shape)}, not sounds: of "
            "shape (samples), or (frames, bands), with any axes of length 1 before"
        )
    librosa = _package("librosa", "audio", where)
    time = time_axis(shape)
    bands = shape[2 * len(shape) - 3 - time] if not is_wave else 0
    window, hop = rate_hz // 25, rate_hz // 50  # 40 ms, 20 ms
    length = shape[-1] if is_wave else window + (shape[time] - 1) * hop

    def read(file: Path) -> Array:
        wave, _ = librosa.load(file, sr=rate_hz, mono=True)
        wave = librosa.util.fix_length(wave, size=length)
        if is_wave:
            return np.asarray(wave).reshape(shape)
        mel = librosa.feature.melspectrogram(
            y=wave, sr=rate_hz, n_fft=window, hop_length=hop, n_mels=bands, center=False
        )
        values = np.log(mel + np.float32(_SMALLEST))
        return np.asarray(values.T if time == len(shape) - 2 else values).reshape(shape)

    return read


def _package(name: str, extra: str, where: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise BadInput(
            f"{where}: {name.partition('.')[0]}, which reads these files, is missing ({error}): "
            f"run `pip install 'poet-host[{extra}]'`"
        ) from error
