"""Data in folders and tables, held out, normalised, in order: what is read, what is refused."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host.data.datasets import Dataset, load_data, normalized
from poet_host.data.fitted import batch_of_step, fit
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from support import whole_runs as runs

from tests.data.test_datasets import classifier, regression

RNG = np.random.default_rng(3)


def table(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def folder(path: Path, **arrays: np.ndarray) -> Path:
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return path


# Folders of .npy files.


def test_a_folder_is_read_as_an_npz_file_is(tmp_path: Path) -> None:
    x, y = RNG.random((8, 3)), np.arange(8) % 2
    found = load_data(folder(tmp_path / "a", x=x, y=y, x_test=x[:2], y_test=y[:2], other=y))
    assert np.array_equal(found.x, x)
    assert np.array_equal(found.y, y)
    assert found.x_test is not None
    assert np.array_equal(found.x_test, x[:2])
    assert fit(found, classifier()).x.dtype == np.float32


def test_training_samples_may_have_the_names_that_keras_gives(tmp_path: Path) -> None:
    x, y = RNG.random((8, 3)), np.arange(8) % 2
    arrays = {"x_train": x, "y_train": y, "x_test": x[:2], "y_test": y[:2]}
    np.savez(tmp_path / "a.npz", **arrays)
    for found in (load_data(tmp_path / "a.npz"), load_data(folder(tmp_path / "b", **arrays))):
        assert np.array_equal(found.x, x)
        assert np.array_equal(found.y, y)
        assert found.x_test is not None
    np.savez(tmp_path / "both.npz", x=x, y=y, x_train=x[:1], y_train=y[:1])
    assert len(load_data(tmp_path / "both.npz").x) == 8


@pytest.mark.parametrize("name", ["a.mat", "a.pt", "a.pkl"])
def test_files_of_other_kinds_are_refused_with_a_way(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"RIFF")
    with pytest.raises(BadInput, match=r"numpy\.savez"):
        load_data(tmp_path / name)
    with pytest.raises(BadInput, match="empty"):
        load_data("")


def test_a_folder_without_samples_or_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="found x, but the data must hold x and y"):
        load_data(folder(tmp_path / "a", x=np.zeros(3)))
    with pytest.raises(BadInput, match="found no arrays"):
        load_data(folder(tmp_path / "b"))
    broken = folder(tmp_path / "c", y=np.zeros(3))
    (broken / "x.npy").write_bytes(b"no array")
    with pytest.raises(BadInput, match=r"x\.npy: this is not a readable \.npy file"):
        load_data(broken)


def test_what_stands_next_to_the_arrays_is_not_read(tmp_path: Path) -> None:
    x, y = RNG.random((8, 3)), np.arange(8) % 2
    pickled = np.array([{}], dtype=object)
    np.savez(tmp_path / "a.npz", x=x, y=y, names=pickled)
    assert np.array_equal(load_data(tmp_path / "a.npz").x, x)
    assert np.array_equal(load_data(folder(tmp_path / "b", x=x, y=y, names=pickled)).x, x)


def test_files_that_hold_something_else_under_the_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", b"junk")
        file.writestr("y.npy", b"junk")
    with pytest.raises(BadInput, match="x is not an array"):
        load_data(tmp_path / "a.npz")
    (tmp_path / "b").mkdir()
    for name in ("x", "y"):
        with (tmp_path / "b" / f"{name}.npy").open("wb") as raw:
            np.savez(raw, x=np.zeros(3))
    with pytest.raises(BadInput, match=r"x\.npy: this is an \.npz file"):
        load_data(tmp_path / "b")
    np.savez_compressed(tmp_path / "c.npz", x=RNG.random((64, 64)), y=np.zeros(64))
    raw_bytes = bytearray((tmp_path / "c.npz").read_bytes())
    raw_bytes[300:340] = bytes(40)
    (tmp_path / "c.npz").write_bytes(raw_bytes)
    with pytest.raises(BadInput, match=r"not a readable \.npz file"):
        load_data(tmp_path / "c.npz")


def array_file() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((4, 3), np.float32))
    return file.getvalue()


@pytest.mark.parametrize(
    ("places", "byte"),
    [
        ((6,), 1),  # in the member's header: encrypted
        ((8,), 99),  # an unknown method
        ((4,), 99),  # an unknown version
        (range(44, 75), 0xFF),  # in the member, after its name and the coder's properties
    ],
)
def test_archives_that_cannot_be_opened_are_refused(
    tmp_path: Path, places: Sequence[int], byte: int
) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("x.npy", array_file())
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    for place in places:
        raw[place] = byte
        if place < 30:  # the archive's directory repeats the header
            raw[raw.rindex(b"PK\x01\x02") + place + 2] = byte
    (tmp_path / "a.npz").write_bytes(raw)
    with pytest.raises(BadInput, match=r"not a readable \.npz file"):
        load_data(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"(4, 3)", b"(4, 3("), (b"(4, 3)", b"(4, 3\\"), (b"(4, 3), }", b"(%d, 3)}" % 2**70)],
)
def test_arrays_with_a_damaged_header_are_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = folder(tmp_path / "a", y=np.zeros(4))
    spaces = b" " * (len(new) - len(old))
    damaged = array_file().replace(old + spaces, new)
    assert len(damaged) == len(array_file())
    (path / "x.npy").write_bytes(damaged)
    with pytest.raises(BadInput, match=r"x\.npy: this is not a readable \.npy file"):
        load_data(path)


# Tables.


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3,0\n4,5,6,1\n",
        "a;b;c;label\n1;2;3;0\n4;5;6;1\n\n",
        "\ufeffa\tb\tc\td\n1\t2\t3\t0\n4\t5\t6\t1",
        "\r\n \r\n1;2;3;0\r\n   \r\n4;5;6;1\r\n  \r\n",
        '"a, in m","b\nof c",c,d\n"1","2",3,0\n4,5,6,1',
    ],
)
def test_a_table_is_a_row_for_each_sample_with_the_label_last(tmp_path: Path, text: str) -> None:
    found = load_data(table(tmp_path / "t.csv", text))
    assert np.array_equal(found.x, [[1, 2, 3], [4, 5, 6]])
    assert np.array_equal(found.y, [0, 1])
    assert found.classes == ()


def test_rows_of_a_table_take_the_shape_that_the_model_needs(tmp_path: Path) -> None:
    rows = "".join(f"{i},2,3,4,5,6,{i % 2}\n" for i in range(5))
    found = fit(load_data(table(tmp_path / "t.csv", rows)), classifier(shape=(2, 3)))
    assert found.x.shape == (5, 2, 3)
    assert np.array_equal(found.x[3], [[3, 2, 3], [4, 5, 6]])
    with pytest.raises(BadInput, match=r"x has shape \(5, 6\), but tiny needs \(N, 7\)"):
        fit(load_data(tmp_path / "t.csv"), classifier(shape=(7,)))


def test_words_are_classes_in_the_order_of_the_alphabet(tmp_path: Path) -> None:
    found = load_data(table(tmp_path / "t.csv", "h,i,kind\n1,2,rose\n1,3,iris\n2,2,rose\n"))
    assert found.classes == ("iris", "rose")
    assert np.array_equal(found.y, [1, 0, 1])


def test_only_ends_of_lines_end_a_row(tmp_path: Path) -> None:
    found = load_data(table(tmp_path / "t.csv", "1,2,a\u2028b\n2,3,c\x0cd\n"))
    assert found.classes == ("a\u2028b", "c\x0cd")


@pytest.mark.parametrize(
    ("text", "header", "samples"),
    [
        ("0,1,2\n3,4,0\n", None, 2),
        ("0,1,2\n3,4,0\n", False, 2),
        ("0,1,2\n3,4,0\n", True, 1),
        ("0,1,label\n3,4,a\n", True, 1),
        ("a,b,c\n0,1,2\n3,4,5\n", None, 2),
        ("a,b,c\n0,1,2\n3,4,5\n", True, 2),
    ],
)
def test_the_first_row_is_a_header_row_as_the_user_says(
    tmp_path: Path, text: str, header: bool | None, samples: int
) -> None:
    assert len(load_data(table(tmp_path / "t.csv", text), header=header).x) == samples


@pytest.mark.parametrize("head", ["0,1,2,3,label", "400,402,404,406,species"])
def test_a_header_row_of_numbers_before_a_word_is_not_a_sample(tmp_path: Path, head: str) -> None:
    rows = "".join(f"{i},{i},3,4,{'ab'[i % 2]}\n" for i in range(4))
    path = table(tmp_path / "t.csv", f"{head}\n{rows}")
    with pytest.raises(BadInput, match=r"--header yes if .*, and --header no if"):
        load_data(path)
    assert [load_data(path, header=it).x.shape for it in (True, False)] == [(4, 4), (5, 4)]


@pytest.mark.parametrize(
    "text",
    [
        "5,6,a\n7,8,b\n",  # each label occurs once
        "5,6,a\n",
        "5,6,a\n7,8,b\n8,9,b\n1,2,c\n",
        "5,6,a\n7,8,b\n8,9,b\n1,2,a\n",
        "5,5,a\n7,8,b\n8,9,b\n",  # columns have different names
        "x,y,a\n5,6,a\n7,8,b\n8,9,b\n",
    ],
)
def test_a_row_of_numbers_before_a_word_is_a_sample(tmp_path: Path, text: str) -> None:
    assert load_data(table(tmp_path / "t.csv", text)).x[0, 0] == 5


def test_a_first_row_of_words_is_not_a_sample(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r't\.csv, line 1, column 1: "a".*--header yes'):
        load_data(table(tmp_path / "t.csv", "a,b,c\n0,1,2\n"), header=False)


def test_an_unclosed_quote_swallows_no_rows(tmp_path: Path) -> None:
    text = '1,2,rose\n3,4,"iris\n5,6,rose\n7,8,iris\n'
    with pytest.raises(
        BadInput, match=r"line 2: this is not valid CSV .*: check the quotation marks"
    ):
        load_data(table(tmp_path / "t.csv", text))


def test_words_are_not_targets_of_a_regression(tmp_path: Path) -> None:
    rows = "".join(f"1,2,{i},{'ab'[i % 2]}\n" for i in range(8))
    with pytest.raises(BadInput, match="labels are words, but line learns numbers"):
        fit(load_data(table(tmp_path / "t.csv", rows)), regression(outputs=1))


def test_other_numbers_are_targets_of_a_regression(tmp_path: Path) -> None:
    found = load_data(table(tmp_path / "t.csv", "1,2,3,0.5\n" * 4))
    assert found.y.shape == (4, 1)
    with pytest.raises(BadInput, match=r"y has shape \(4, 1\), but line needs \(N, 2\)"):
        fit(found, regression())
    with pytest.raises(BadInput, match="y holds float32, but labels must be integers"):
        fit(found, classifier())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least two columns"),
        ("a\n1\n", "at least two columns"),
        ("a,b\n", "a header row and no samples"),
        ("1,2,0\n1,2\n", "line 2: it has 2 columns, .* 3"),
        ("1,2,0\n1,x,0\n", r'line 2, column 2: "x" is not a number'),
        ("1,x,0\n1,2,0\n", r'line 1, column 2: "x" is not a number'),  # and no header
        ("0,1,2,3\n1,2,3,0\n", "line 1: this row counts the columns"),
        ("?,?,0\n1,2,0\n", r'line 1, column 1: "\?" is not a number'),
        (",,rose\n1,2,iris\n", r'line 1, column 1: "" is not a number'),
        ("1,2,0\n1,1_5,0\n", r'line 2, column 2: "1_5" is not a number'),
        ("1,2,0\n1,2,inf\n", "line 2: the label is not a finite number"),
        ("1,2,nan\n1,2,0\n", "line 1: the label is not a finite number"),
        ("1,2,0\n1,2,one\n", "line 2: .*--header yes"),
        ("1,nan,0\n" * 4, "x holds NaN"),
        ("1,1e39,0\n" * 4, "x holds NaN or infinity"),
        ("1,2,a\n1,2,\n", "line 2: the last column, the label, is empty"),
        ("1,2,0,\n1,2,1,\n", "line 1: the last column, the label, is empty"),
        ("1,2,1e30\n" * 4, "labels must be integers, 0 or more$"),
        ("1,2,1e300\n" * 4, "labels must be integers, 0 or more$"),
        ("1,2,1.0\n" * 4, r"y\.astype\(int\).* 3, not 3\.0"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_not_a_table_is_refused_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        fit(load_data(table(tmp_path / "t.csv", text)), classifier(shape=(2,)))


# Held out.


def test_a_share_is_held_out_by_the_seed() -> None:
    first = load_data("synthetic:3:2")
    assert first.x_test is not None  # so it cannot be split again
    with pytest.raises(BadInput, match="omit --test-split"):
        load_data("synthetic:3:2", test_split=0.5)


def test_every_sample_is_trained_on_or_held_out(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i},{i % 2}\n" for i in range(10))
    path = table(tmp_path / "t.csv", rows)
    found, again = (load_data(path, test_split=0.3, seed=5) for _ in range(2))
    other = load_data(path, test_split=0.3, seed=6)
    assert found.x_test is not None
    assert found.y_test is not None
    assert len(found.x_test) == 3
    assert sorted([*found.x[:, 0], *found.x_test[:, 0]]) == list(range(10))
    assert np.array_equal(found.x_test[:, 0] % 2, found.y_test)
    assert np.array_equal(found.x_test, again.x_test)  # type: ignore[arg-type]
    assert not np.array_equal(found.x_test, other.x_test)  # type: ignore[arg-type]
    for share in (0.01, 0.99, 1.5, float("nan")):
        with pytest.raises(BadInput, match="leaves none to train on, or none to test with"):
            load_data(path, test_split=share)


# Normalised.


def images(**more: np.ndarray) -> Dataset:
    x = RNG.random((6, 2, 4, 4)).astype(np.float32) * 9 + 1
    return Dataset("images", x, np.zeros(6, np.int32), **more)  # type: ignore[arg-type]


def test_scaled_samples_go_from_0_to_1() -> None:
    found = normalized(images(), "scale").x
    assert (found.min(), found.max()) == (0, 1)


def test_standard_is_by_channel_and_by_training_samples_alone() -> None:
    data = images(x_test=np.ones((2, 2, 4, 4)), y_test=np.zeros(2, np.int32))
    found = normalized(data, "standard")
    assert np.allclose(found.x.mean((0, 2, 3)), 0, atol=1e-6)
    assert np.allclose(found.x.std((0, 2, 3)), 1, atol=1e-6)
    mean, deviation = data.x.mean((0, 2, 3)), data.x.std((0, 2, 3))
    assert found.x_test is not None
    assert np.allclose(found.x_test[0, :, 0, 0], (1 - mean) / deviation, atol=1e-5)


def test_what_never_changes_becomes_0() -> None:
    constant = Dataset("c", np.full((3, 2), 7.0), np.zeros(3))
    assert not normalized(constant, "standard").x.any()
    assert not normalized(constant, "scale").x.any()


def test_mean_and_deviation_may_be_given() -> None:
    data = images()
    assert np.allclose(normalized(data, "0.5:0.25").x, (data.x - 0.5) / 0.25)
    assert normalized(data, "none").x is data.x


@pytest.mark.filterwarnings("error")
def test_large_numbers_are_normalised_or_refused() -> None:
    far = Dataset("far", np.array([[-1e38], [1e38], [0]]), np.zeros(3))
    assert normalized(far, "scale").x.tolist() == [[0], [1], [0.5]]
    with pytest.raises(BadInput, match=r"far: after normalisation \(offset 0, scale 1e-09\)"):
        normalized(far, "0:1e-9")
    farther = Dataset("farther", 3 * far.x, far.y)
    with pytest.raises(BadInput, match=r"-3e\+38 to 3e\+38"):
        normalized(farther, "scale")


@pytest.mark.parametrize("how", ["minmax", "1", "1:0", "1:-1", "1:2:3", "nan:1", None, 0.5])
def test_other_ways_to_normalise_are_refused(how: Any) -> None:
    with pytest.raises(BadInput, match="none, scale, standard, or MEAN:STD"):
        normalized(images(), how)


def test_seeds_and_lengths_that_are_none_are_refused() -> None:
    for seed in (-1, "7", 1.0, None):
        with pytest.raises(BadInput, match=f"a seed of {seed!r}: use a whole number from 0"):
            load_data("digits", seed=seed)  # type: ignore[arg-type]
    schedule = runs.schedule(runs.digits())
    with poet.connect("native", arena_bytes=1 << 20) as board:
        for verb in (poet.train, poet.write_card):
            with pytest.raises(BadInput, match="a seed of -1: use a whole number from 0"):
                verb(schedule, board, "digits", seed=-1)
            for name, count in (("steps", -1), ("steps", 0), ("steps", "3"), ("epochs", 0)):
                with pytest.raises(BadInput, match=name):
                    verb(schedule, board, "digits", **{name: count})


# In order.


def test_without_shuffling_every_epoch_has_the_order_of_the_samples(tmp_path: Path) -> None:
    rows = "".join(f"{i},0,0,{i % 2}\n" for i in range(9))
    data = fit(load_data(table(tmp_path / "t.csv", rows), shuffle=False), classifier())
    seen = [batch_of_step(data, 4, seed=1, step=step)[0][:, 0] for step in range(4)]
    assert np.array_equal(np.concatenate(seen), [0, 1, 2, 3, 4, 5, 6, 7] * 2)


# Tokens.


@pytest.mark.filterwarnings("error")
def test_a_table_may_hold_tokens(tmp_path: Path) -> None:
    b = Builder("words", (2, 3), "int32")
    words = b.mean(b.embedding(b.data, 5, 4, name="table"), 1)
    graph = training_graph(b.model(b.softmax_xent(b.linear(words, 2))), Sgd(0.1))
    found = fit(load_data(table(tmp_path / "t.csv", "0,1,4,0\n3,3,3,1\n")), graph)
    assert (found.x.dtype, found.x.tolist()) == (np.int32, [[0, 1, 4], [3, 3, 3]])
    with pytest.raises(BadInput, match=r"token 5 of sample 1 is not in 0\.\.4, .* 5 words"):
        fit(load_data(table(tmp_path / "t.csv", "0,1,4,0\n3,5,3,1\n")), graph)
    for cell in ("0.5", "nan", "1e999", "1e30"):
        with pytest.raises(
            BadInput, match=r"x holds float32, but tokens must be integers, 0 or more$"
        ):
            fit(load_data(table(tmp_path / "t.csv", f"0,1,4,0\n3,{cell},3,1\n")), graph)
