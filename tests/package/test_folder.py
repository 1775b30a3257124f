"""Packages: what they state, what they refuse, and which folders they replace."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PureWindowsPath

import numpy as np
import poet_host as poet
import pytest
from poet_host.card.weights import SavedWeights
from poet_host.data.facts import NO_FACTS
from poet_host.data.normalization import Normalization
from poet_host.data.taught import Taught
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.cuts import Cut
from poet_host.graph.weights import start_values
from poet_host.package.folder import facts, load, name_in, write
from poet_host.package.packaged import Packaged, Raw, identifier, raw_of
from poet_host.package.sizes import ERASE_BLOCKS, storage_blocks
from poet_host.package.source import header, macros
from poet_host.package.stored import LearnerStore
from poet_host.plan.verify import verify
from support.command import Command
from support.learner_bench import Device, Kind, Learner, Trace, blocks, packaged, schedule, start

KINDS = (
    Kind(), Kind(pages=True), Kind(slots=9, raw="uint8"), Kind(autoencoder=True, raw="float32")
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_package_states_the_blocks_that_the_library_needs(kind: Kind) -> None:
    needed = [storage_blocks(packaged(kind), unit) for unit in ERASE_BLOCKS]
    assert needed == [blocks(kind, unit) for unit in ERASE_BLOCKS]
    assert facts(packaged(kind), "c")["storage_blocks"] == max(needed)


def test_the_page_of_file_formats_names_each_figure() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "file-formats.md"
    section = page.read_text("utf-8").partition("## Package")[2]
    made = packaged(Kind())
    own = {"format", "version", "tensor_bytes", *(name.lower() for name in macros(made))}
    assert [key for key in facts(made, "c") if key not in own and f"`{key}`" not in section] == []


def test_an_inference_waits_for_a_step_that_commits() -> None:
    graph = Kind(channels=64).graph
    problem = poet.problem(graph, "nrf52840_dk", commit_every=100)
    made = poet.encode(graph, plan := poet.solve(problem, work_limit=500))
    longest_us = verify(problem, plan).longest_us + 100 * made.meta["commit"]["time_us"]
    weights = SavedWeights(start_values(graph, 0), NO_FACTS)
    stated = facts(Packaged("small", made, weights), "c")
    assert longest_us > 2 * stated["step_time_us"]
    assert stated["infer_waits_us"] >= longest_us + stated["inference_time_us"]


def test_a_folder_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = packaged(Kind())
    stated = write(made, "c", tmp_path / "small")
    again = load(tmp_path / "small")
    assert stated == json.loads((tmp_path / "small" / "package.json").read_text())
    assert again.first_values() == made.first_values()
    assert again.schedule.to_bytes() == made.schedule.to_bytes()
    assert (again.raw, again.slots, again.seed) == (made.raw, made.slots, made.seed)
    assert again.normalization == made.normalization


@pytest.mark.parametrize("name", ["n" * 300, "two\nlines", "../other", "9lives"])
def test_a_package_whose_name_is_changed_is_refused(tmp_path: Path, name: str) -> None:
    stated = write(packaged(Kind()), "c", tmp_path / "small")
    (tmp_path / "small" / "package.json").write_text(json.dumps(stated | {"name": name}))
    with pytest.raises(poet.BadInput, match="no package has the name") as found:
        load(tmp_path / "small")
    assert "\n" not in str(found.value)


def test_the_root_folder_is_refused() -> None:
    with pytest.raises(poet.BadInput, match="is not a package"):
        write(packaged(Kind()), "c", Path("/"))


def test_weights_are_pulled_to_those_of_the_package(tmp_path: Path, poet_host: Command) -> None:
    b = Builder("prox", data=(2, 3))
    model = b.model(b.softmax_xent(b.linear(b.data, 2, name="fc")))
    graph = training_graph(model, Sgd(0.1, 0.9), proximal=0.5)
    made = poet.encode(graph, poet.solve(graph, "nano_33_iot", work_limit=500))
    given = {"fc.weight": np.full((2, 3), 7, np.float32), "fc.bias": np.ones(2, np.float32)}
    old = {f"{name}:anchor": value - 1 for name, value in given.items()}
    poet.write_package(made, tmp_path / "prox", weights=given | old)
    found = load(tmp_path / "prox").weights
    for name, value in given.items():
        assert np.array_equal(found[f"{name}:anchor"], value)
        assert not found[f"{name}:momentum"].any()
    device, moved = tmp_path / "card.img", {name: value + 1 for name, value in given.items()}
    one = np.zeros((1, 3), np.float32), np.zeros(1, int)
    poet.write_learner(device, tmp_path / "prox", one, moved | old)
    with LearnerStore(device, load(tmp_path / "prox")) as store:
        kept = store.weights()
    for name, value in given.items():
        assert np.array_equal(kept[name], moved[name])
        assert np.array_equal(kept[f"{name}:anchor"], value)

    samples, file = tmp_path / "s.npz", tmp_path / "w.safetensors"
    poet.save_samples(device, tmp_path / "prox", samples)
    poet.save_weights(file, graph, kept, 4)
    after = file.with_name("after.safetensors")
    done = poet_host(
        "train", tmp_path / "prox", "--from-samples", "--data", samples, "--resume",
        "--load-weights", file, "--steps", "6", "--save-weights", after, "--port", "native",
    )  # fmt: skip
    assert not done.code, done
    ours = poet.load_weights(after, graph)
    with poet.connect("native", card=made.model.storage) as board:
        data = poet.load_samples(tmp_path / "prox", samples)
        theirs = poet.train(made, board, data, steps=6, weights=kept, first_step=4).weights
    assert all(np.array_equal(ours[name], theirs[name]) for name in given)


def test_training_on_samples_begins_with_the_weights_of_the_package(
    tmp_path: Path, poet_host: Command
) -> None:
    b = Builder("plain", data=(1, 3))
    graph = training_graph(b.model(b.softmax_xent(b.linear(b.data, 2, name="fc"))), Sgd(0.1))
    given = {"fc.weight": np.full((2, 3), 7, np.float32), "fc.bias": np.ones(2, np.float32)}
    folder, device, samples = tmp_path / "plain", tmp_path / "card.img", tmp_path / "s.npz"
    made = poet.encode(graph, poet.solve(graph, "nano_33_iot", work_limit=500))
    poet.write_package(made, folder, weights=given)
    poet.write_learner(device, folder, (np.eye(3, dtype=np.float32), np.array([0, 1, 1])))
    poet.save_samples(device, folder, samples)
    after = tmp_path / "after.safetensors"
    done = poet_host(
        "train", folder, "--from-samples", "--data", samples, "--steps", "4",
        "--save-weights", after, "--port", "native",
    )  # fmt: skip
    assert not done.code, done
    ours, theirs = poet.load_weights(after, graph), poet.replay(folder, samples, steps=4)
    assert all(np.array_equal(ours[name], theirs[name]) for name in given)


@pytest.mark.parametrize("count", [6, 18])
def test_a_new_training_has_all_samples_from_its_first_step_on(
    count: int, tmp_path: Path, poet_host: Command
) -> None:
    """However late the device was taught them. Of 18, it has replaced the first ones."""
    kind, folder, samples = Kind(), tmp_path / "small", tmp_path / "s.npz"
    image, after = tmp_path / "i.img", tmp_path / "after.safetensors"
    write(packaged(kind), "c", folder)
    learner, trace = Learner(kind, Device(blocks(kind, 8), 8)), Trace(kind)
    for number in range(count):
        while not trace.teach(learner, number % 3):
            learner.run()
        learner.learn(2)
        learner.run()
    learner.save()
    image.write_bytes(learner.device.image)
    assert poet.save_samples(image, folder, samples) == min(count, 15)
    train = (
        "train", folder, "--from-samples", "--data", samples, "--steps", 9, "--save-weights", after
    )  # fmt: skip
    done = poet_host(*train, "--port", "native")
    assert not done.code, done
    taught = [Taught(it.label, 1) for it in trace.taught]
    wanted = Trace(kind, trace.x, taught).replay(9)
    found = poet.load_weights(after, kind.graph)
    assert {name: found[name].tobytes() for name in wanted} == wanted

    # A device has trained no step without samples.
    old = ("--resume", "--load-weights", tmp_path / "old.safetensors", "--port", "/dev/no-board")
    poet.save_weights(old[2], kind.graph, found, 1)
    if count == 18:
        poet_host(*train, *old).fails(2, samples, "step 2")


@pytest.mark.parametrize(
    ("command", "more", "name"),
    [
        ("replay", ("--trace", "t.npz", "--steps", 1, "--save-weights"), "small.safetensors"),
        ("card read", ("--storage", "i.img", "--save-weights"), "small.safetensors"),
        ("card write", ("--data", "t.npz", "--erase-card", "-o"), "small.poet"),
        (
            "train", ("--from-samples", "--data", "t.npz", "--port", "native", "--save-weights"),
            "small.safetensors",
        ),
    ],
)  # fmt: skip
def test_a_command_does_not_replace_files_of_the_package_that_it_reads(
    command: str,
    more: tuple[object, ...],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    poet_host: Command,
) -> None:
    monkeypatch.chdir(tmp_path)
    kind = Kind()
    write(packaged(kind), "c", tmp_path / "small")
    x = np.stack([kind.sample(number) for number in range(3)])
    np.savez("t.npz", x=x, y=np.arange(3), next_step=np.ones(3, int))
    poet.write_learner("i.img", "small", "t.npz")
    file = Path("small", "extras", name)
    before = file.read_bytes()
    poet_host(*command.split(), "small", *more, file).fails(2, file)
    assert file.read_bytes() == before
    if name.endswith(".safetensors"):
        assert poet_host(*command.split(), "small", *more, file.with_stem("mine")).code == 0


def test_only_unchanged_packages_and_empty_folders_are_replaced(tmp_path: Path) -> None:
    folder, made = tmp_path / "small", packaged(Kind())
    folder.mkdir()
    write(made, "c", folder)
    (folder / "app.c").write_text("int main(void) { return 0; }\n")
    stated = write(packaged(Kind(slots=9)), "c", folder)
    assert stated["samples_of_class"] == load(folder).slots == 9
    assert (folder / "app.c").exists()
    assert "app.c" not in stated["files"]

    for is_made_again in (False, True):
        folder.replace(tmp_path / "small.poet-old")  # as a process that was killed leaves it
        if is_made_again:
            folder.mkdir()
        write(made, "c", folder)
        assert (folder / "app.c").exists()
        assert [*tmp_path.iterdir()] == [folder]

    (folder / "src" / "small.h").write_text("changed")
    with pytest.raises(poet.BadInput, match=r"small\.h"):
        write(made, "c", folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(poet.BadInput, match="other"):
        write(made, "c", other)
    assert sorted(it.name for it in tmp_path.iterdir()) == ["other", "small"]
    assert [it.name for it in other.iterdir()] == ["notes.txt"]


def test_a_package_of_windows_lists_its_files_with_slashes() -> None:
    folder = PureWindowsPath(r"C:\small")
    assert name_in(folder, folder / "src" / "small.h") == "src/small.h"


def test_links_and_empty_folders_stay(tmp_path: Path) -> None:
    folder, made, mine = tmp_path / "small", packaged(Kind()), tmp_path / "mine"
    write(made, "c", folder)
    mine.mkdir()
    (folder / "more").symlink_to(mine)
    (folder / "build" / "empty").mkdir(parents=True)
    write(made, "c", folder)
    assert (folder / "more").readlink() == mine
    assert (folder / "build" / "empty").is_dir()

    (folder / "library.json").symlink_to(mine)  # of a package for PlatformIO
    with pytest.raises(poet.BadInput, match=r"library\.json"):
        write(made, "platformio", folder)
    assert (folder / "library.json").is_symlink()


def test_a_package_states_how_tensors_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    made = packaged(Kind())
    model, number = made.schedule.model, made.schedule.names.index("conv.weight")
    assert facts(made, "c")["tensor_cuts"] == {}
    tensors = [*model.tensors]
    tensors[number] = replace(tensors[number], cut=Cut(4, (4, 2, 3), (2, 1, 3)))
    monkeypatch.setitem(vars(made.schedule), "model", replace(model, tensors=(*tensors,)))
    cut = {"size": (4, 2, 3), "part": (2, 1, 3), "unit_bytes": 4}
    assert facts(made, "c")["tensor_cuts"] == {"conv.weight": cut}


@pytest.mark.parametrize("name", ["*/ int x; /*", "*/\n"])
def test_the_name_of_a_model_ends_no_comment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = packaged(Kind())
    comments = header(made).count("/*")
    monkeypatch.setitem(vars(made.schedule), "graph", replace(made.schedule.graph, name=name))
    assert header(made).count("/*") == header(made).count("*/") == comments


def test_a_package_has_no_other_kernels(tmp_path: Path) -> None:
    write(packaged(Kind()), "c", tmp_path / "small")
    source = tmp_path / "small" / "src"
    names = {it.name for it in source.iterdir()}
    assert {"small.h", "poet_conv2d.c", "poet_learner.c"} <= names
    assert not {"poet_batchnorm.c", "poet_matmul.c", "poet_server.c"} & names
    assert "#define POET_STREAMS 0\n" in (source / "poet" / "small.h").read_text()


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("float32", Raw()),
        ("int16:1/4096", Raw("int16", 1 / 4096)),
        ("uint8:0.5:128", Raw("uint8", 0.5, 128)),
        ("int8:2:-3e0", Raw("int8", 2, -3)),
    ],
)
def test_raw_values_have_a_type_a_scale_and_an_offset(text: str, raw: Raw) -> None:
    assert raw_of(text) == raw
    values = np.array([[0, 3, 127]], raw.dtype)
    wanted = (values.astype("<f4") - np.float32(raw.offset)) * np.float32(raw.scale)
    np.testing.assert_array_equal(raw.floats(values), wanted)


@pytest.mark.parametrize(
    "text",
    ["", "int16", "float32:1", "int32:1", "int16:0", "int16:-1", "int16:x", "int16:1/0",
     "int16:1:2:3", "int16:1e-60", "int16:1e60", "int16:1e999999999", "int16:nan", "int16:1:inf"],
)  # fmt: skip
def test_other_raw_values_are_refused(text: str) -> None:
    with pytest.raises(poet.BadInput, match="raw"):
        raw_of(text)


def test_names_become_identifiers() -> None:
    names = {it: identifier(it) for it in ("gesture", "my-model v2", "3axes", "größe")}
    assert [*names.values()] == ["gesture", "my_model_v2", "_3axes", "gr__e"]


@pytest.mark.parametrize("name", ["math", "Signal", "stdint", "unistd", "POET"])
def test_a_header_of_a_package_hides_no_other_one(name: str) -> None:
    assert identifier(name) == f"{name}_model"


@pytest.mark.parametrize("pages", [False, True])
def test_samples_that_no_learner_can_count_are_refused(
    pages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, most = packaged(Kind(pages=pages)), 1 << (39 if pages else 31)
    per_slot = most // made.slots // made.classes
    monkeypatch.setattr(Packaged, "sample_bytes", per_slot - 1)
    replace(made)
    monkeypatch.setattr(Packaged, "sample_bytes", per_slot + 1)
    with pytest.raises(poet.BadInput, match=rf"at most {made.slots - 1}\b"):
        replace(made)


def test_schedules_that_no_learner_can_use_are_refused() -> None:
    made = packaged(Kind())
    with pytest.raises(poet.BadInput, match="poet-host solve"):
        replace(made, schedule=replace(schedule(Kind()), forward_part=b""))
    for slots in (0, 2**15):
        with pytest.raises(poet.BadInput, match="samples of a class"):
            replace(made, slots=slots)
    wrong = Normalization((0.0,) * 5, (1.0,) * 5)
    weights = type(made.weights)(start(Kind()), replace(made.weights.facts, normalization=wrong))
    with pytest.raises(poet.BadInput, match="channels"):
        replace(made, weights=weights)


def of_graph(graph: poet.Graph) -> poet.Schedule:
    """Return a schedule without a forward program."""
    problem = poet.problem(graph, "native", ram="64MiB")
    assert problem.keep_everything is not None
    profile = poet.estimate_profile("native")
    return poet.encode(graph, profile, problem.keep_everything, forward=False)


def values_graph() -> poet.Graph:
    b = Builder("values", data=(2, 12))
    return training_graph(b.model(b.mse(b.linear(b.data, 3, name="out"), name="loss")), Sgd(0.05))


@pytest.mark.parametrize(
    ("graph", "word"),
    [(lambda: poet.load("bert-micro"), "tokens"), (values_graph, "values")],
    ids=["tokens", "values"],
)
def test_other_models_are_refused(graph: Callable[[], poet.Graph], word: str) -> None:
    made = of_graph(graph())
    weights = SavedWeights(start_values(made.graph, 0), NO_FACTS)
    with pytest.raises(poet.BadInput, match=word):
        Packaged("other", made, weights)


def test_samples_that_stream_in_parts_of_rows_are_refused() -> None:
    """A device writes the samples of a batch one after the other."""
    b = Builder("dense", data=(16, 64))
    x = b.linear(b.relu(b.linear(b.data, 32, name="one")), 10, name="two")
    graph = training_graph(b.model(b.softmax_xent(x)), Sgd(0.05))
    problem = poet.problem(graph, poet.estimate_profile("native"), ram=4_096)
    made = poet.encode(graph, poet.solve(problem, work_limit=3_000, gap=0.5))
    with pytest.raises(poet.BadInput, match=r"data.*--no-streaming"):
        Packaged("dense", made, SavedWeights(start_values(graph, 0), NO_FACTS))


@pytest.mark.parametrize("name", ["data", "logits"])
def test_inferences_that_stream_in_parts_of_rows_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = packaged(Kind(autoencoder=True))
    graph, model = made.forward.graph, made.forward.model
    number = made.forward.numbers[getattr(graph, name)]
    tensors = [*model.tensors]
    tensors[number] = replace(tensors[number], cut=Cut(4, (2, 3, 2), (2, 1, 2)))
    monkeypatch.setitem(vars(made.forward), "model", replace(model, tensors=(*tensors,)))
    with pytest.raises(poet.BadInput, match="--no-streaming"):
        replace(made)


def test_the_command_packages_a_schedule(tmp_path: Path, poet_host: Command) -> None:
    schedule(Kind()).save(tmp_path / "my-model.poet")
    weights = {name: value + np.float32(0.5) for name, value in start(Kind()).items()}
    poet.save_weights(tmp_path / "w.safetensors", Kind().graph, weights, 7, ("a", "b", "c"))
    out = tmp_path / "out"
    stated = poet_host(
        "package", tmp_path / "my-model.poet", "--weights", tmp_path / "w.safetensors", "--raw",
        "int16:1/4096", "--for", "c", "-o", out, "--json",
    ).json  # fmt: skip
    assert stated["name"] == "my_model"
    assert stated["class_names"] == ["a", "b", "c"]
    assert (out / "src" / "my_model.h").exists()
    names = ["conv.weight", "conv.bias", "fc.weight", "fc.bias"]
    assert stated["tensor_names"][:4] == names
    assert {*stated["tensor_names"][4:]} == {f"momentum:{name}" for name in names}
    kept = load(out).weights
    np.testing.assert_array_equal(kept["conv.weight"], weights["conv.weight"])
    assert not kept["conv.weight:momentum"].any()

    before = (out / "package.json").read_bytes()
    failed = ("package", tmp_path / "my-model.poet", "--for", "c", "-o", out)
    poet_host(*failed, "--raw", "int16").fails(2, "int16")
    poet_host(*failed, "--samples", "99999").fails(2, "99,999")
    poet_host("package", tmp_path / "w.safetensors", "--for", "c", "-o", out).fails(
        2, "w.safetensors"
    )
    poet_host("package", tmp_path / "my-model.poet", "--for", "c", "-o", tmp_path).fails(
        2, tmp_path
    )
    assert (out / "package.json").read_bytes() == before
