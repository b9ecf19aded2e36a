"""Figures made into folders: what is there is taken, what is damaged is made again, what cannot be is refused first."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import xarray as xr

from asymptotix.figures.making import gallery, registry, reproduce
from asymptotix.figures.making.claims import PublishedClaim
from asymptotix.figures.making.drawing import panels
from asymptotix.figures.making.parts import Parts
from asymptotix.figures.making.record import Findings, agreement
from asymptotix.figures.making.registry import Size, figure
from toy import ToyLearning, ToyRegression, ToyRun

PROBLEM = ToyLearning(ToyRegression(indices=2, noise=0.5))
made: list[str] = []


def toy_figure(parts: Parts, *, seeds: int):
    made.append("toy")
    theory = parts.solve("theory", PROBLEM, alpha=[0.2, 0.4])
    runs = parts.simulate("runs", PROBLEM, ToyRun(), alpha=[0.2, 0.4], dim=50, seeds=seeds)
    grid = parts.dataset("squares", {"seeds": seeds}, lambda: xr.Dataset({"square": ("x", np.arange(3.0) ** 2)}))
    picture, (axis,) = panels(size=(3, 2))
    axis.plot(grid["square"])
    close = agreement("overlap", parts.compare(theory, runs), "overlap", index=0, index_other=0)
    claim = PublishedClaim("overlap at 0.4", 0.4, "Section 1", "equals", rounding=0.005)
    return picture, Findings([close], [claim.judged(float(theory.overlap[1, 0, 0]), error=1e-6)], ["A remark."])


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """A registry of two figures, and one that needs data; returns what is said and the folder."""
    monkeypatch.setattr(registry, "FIGURES", {})
    monkeypatch.setattr(reproduce, "FIGURES", registry.FIGURES)
    made.clear()
    small = Size(minutes=0.1, gib=0.1, settings={"seeds": 3})
    figure("training/toy", shows="A toy", source="nowhere", quick=small, paper=Size(9.0, 1e6, {"seeds": 9}))(toy_figure)
    figure("deep/toy", shows="Another", source="nowhere", quick=small, paper=small)(toy_figure)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ASYMPTOTIX_DATA", raising=False)
    figure("paths/fig3", shows="Images", source="elsewhere", quick=small, paper=small, needs=("omniglot",))(toy_figure)
    return [], tmp_path / "figures"


def test_a_figure_is_a_picture_its_data_and_a_record(toys):
    said, out = toys
    record = reproduce.reproduce("training/toy", out=out, say=said.append)
    folder = out / "training" / "toy"
    assert {path.name for path in folder.iterdir()} == {
        "toy.png", "toy.pdf", "record.md", "record.json", "theory.nc", "runs.nc", "squares.nc",
    }  # fmt: skip
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    with xr.open_dataset(folder / "theory.nc", engine="h5netcdf") as plain:
        np.testing.assert_allclose(plain["overlap"][:, 0, 0], [0.2 / 1.5, 0.4 / 1.5])
    assert record["verdict"] == "0 of 1 published claims confirmed, 1 not confirmed"
    assert record["claims"][0]["published"] == "0.4"
    assert record["claims"][0]["found"].startswith("0.26666")
    assert record["agreements"][0]["points"] == 2
    page = (folder / "record.md").read_text()
    assert "A remark." in page
    assert "4 of 4" not in page
    assert "6 of 6 points ok" in page


def test_what_is_there_is_not_made_again(toys):
    said, out = toys
    reproduce.reproduce("training/toy", out=out, say=said.append)
    reproduce.reproduce("training/toy", out=out, say=said.append)
    assert len(made) == 1
    assert said[-1] == "training/toy: there already"


@pytest.mark.parametrize(
    ("file", "damage"),
    [("theory.nc", "flipped"), pytest.param("runs.nc", "cut", marks=pytest.mark.slow), ("squares.nc", "flipped")],
)
def test_a_damaged_part_is_computed_anew_and_said(toys, file, damage):
    said, out = toys
    reproduce.reproduce("training/toy", out=out, say=said.append)
    path = out / "training" / "toy" / file
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)
    said.clear()
    again = reproduce.reproduce("training/toy", out=out, say=said.append)
    assert any("computed anew" in line and file in line for line in said)
    assert len(made) == 2
    assert again["claims"][0]["found"].startswith("0.26666")


def test_a_part_of_something_else_is_computed_anew_and_said(toys):
    said, out = toys
    reproduce.reproduce("training/toy", out=out, say=said.append)
    folder = out / "training" / "toy"
    (folder / "record.json").unlink()
    other = ToyLearning(ToyRegression(indices=2, noise=0.1))
    Parts(folder, said.append).solve("theory", other, alpha=[0.2, 0.4])  # in the place of the figure's own
    assert any("of something else" in line for line in said)
    said.clear()
    again = reproduce.reproduce("training/toy", out=out, say=said.append)
    assert any("of something else" in line for line in said)
    assert again["claims"][0]["found"].startswith("0.26666")


def test_all_goes_on_where_it_was_stopped(toys, monkeypatch):
    said, out = toys
    real = Parts.simulate

    def stopped(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Parts, "simulate", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce_all(out=out, say=said.append)
    monkeypatch.setattr(Parts, "simulate", real)
    solved: list[int] = []
    own = ToyLearning.solve_points

    def counted(problem, points, **options):
        solved.append(len(points))
        return own(problem, points, **options)

    monkeypatch.setattr(ToyLearning, "solve_points", counted)
    reproduce.reproduce_all(out=out, say=said.append)
    assert solved == [2]  # of deep/toy: what training/toy had when it was stopped is kept
    assert (out / "deep" / "toy" / "record.json").exists()
    page = (out / "index.html").read_text()
    assert "2 of 3 figures" in page
    assert 'src="training/toy/toy.png"' in page
    assert "needs the data set omniglot" in page
    assert any(line.startswith("paths/fig3 needs the data set omniglot: `asymptotix data get") for line in said)
    verdicts = (out / "verdicts.md").read_text()
    assert verdicts.index("### deep/toy: 0 of 1 published") < verdicts.index("### training/toy: 0 of 1 published")
    assert "| overlap at 0.4 | 0.4 (Section 1) | 0.2666" in verdicts


def test_text_of_a_figure_is_no_markup_of_the_page():
    """A record may hold what a user's program said; ``&`` and ``<`` of a formula are shown as they are."""
    bad = """<script>alert("1")</script> & 'more'"""
    toy, missing = (registry.Reproducible(name, bad, bad, {}, toy_figure) for name in ("training/toy", "deep/toy"))
    claim = {"what": bad, "published": bad, "source": bad, "found": bad}
    record = {
        "verdict": bad, "files": [f"{bad}.nc"], "agreements": [{"curve": bad, "words": bad}],
        "claims": [{**claim, "holds": holds} for holds in (True, False, None)],
    }  # fmt: skip
    shown = gallery.page([(toy, record), (missing, None)], bad)
    assert "<script" not in shown
    assert '"1"' not in shown  # it would end an attribute
    assert shown.count("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;") == shown.count("alert") > 15


def test_one_that_fails_does_not_stop_the_others(toys, monkeypatch):
    said, out = toys
    good = registry.FIGURES["training/toy"]

    def fails(parts, **settings):
        raise FloatingPointError("no root")

    bad = registry.Reproducible("training/toy", "A toy", "nowhere", good.sizes, fails)
    monkeypatch.setitem(registry.FIGURES, "training/toy", bad)
    with pytest.raises(RuntimeError, match="1 figures failed: training/toy"):
        reproduce.reproduce_all(out=out, say=said.append)
    assert (out / "deep" / "toy" / "record.json").exists()
    assert "training/toy: failed: no root" in said


def test_bad_input_is_refused_before_any_work(toys, tmp_path):
    said, out = toys
    with pytest.raises(ValueError, match=r"no figure 'training/tyo'; did you mean 'training/toy'"):
        reproduce.reproduce("training/tyo", out=out, say=said.append)
    with pytest.raises(ValueError, match="size must be one of 'quick', 'paper', got 'huge'"):
        reproduce.reproduce("training/toy", "huge", out=out, say=said.append)
    with pytest.raises(FileNotFoundError, match="data set omniglot"):
        reproduce.reproduce("paths/fig3", out=out, say=said.append)
    with pytest.raises(MemoryError, match=r"training/toy at size paper takes 1000000.0 GiB.*--size quick"):
        reproduce.reproduce("training/toy", "paper", out=out, say=said.append)
    (tmp_path / "a_file").write_text("")
    with pytest.raises(OSError, match=r"--out .*a_file cannot be written to"):
        reproduce.reproduce("training/toy", out=tmp_path / "a_file", say=said.append)
    with pytest.raises(TypeError, match="unknown setting of training/toy: sedes; accepted are seeds"):
        registry.FIGURES["training/toy"]("quick", sedes=2)
    assert not made


def test_from_python_one_gets_the_results_and_the_picture(toys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = registry.FIGURES["training/toy"](seeds=2)
    assert found.results["runs"].ds.sizes["seed"] == 2
    assert found.settings == {"seeds": 2}
    found.figure.axes[0].set_title("mine")


def test_records_are_plain_json(toys):
    said, out = toys
    reproduce.reproduce("training/toy", out=out, say=said.append)
    record = json.loads((out / "training" / "toy" / "record.json").read_text())
    assert record["settings"] == {"seeds": 3}
    assert set(record["files"]) >= {"toy.png", "toy.pdf", "record.md", "theory.nc"}


@pytest.fixture
def drawn_from_data(toys, tmp_path, monkeypatch):
    """The registry, with one figure more, that is made from a data set; and the directory that may hold it."""
    place = tmp_path / "data"
    (place / "omniglot").mkdir(parents=True)
    monkeypatch.setenv("ASYMPTOTIX_DATA", str(place))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    small = Size(minutes=0.1, gib=0.1, settings={"seeds": 2})
    figure("paths/toy", shows="Images", source="here", quick=small, paper=small, needs=("omniglot",))(toy_figure)
    return *toys, place


def test_without_its_data_set_a_figure_is_passed_over_in_one_sentence(drawn_from_data):
    said, out, _ = drawn_from_data
    with pytest.raises(FileNotFoundError, match=r"paths/toy needs the data set omniglot: `asymptotix data get"):
        reproduce.reproduce("paths/toy", out=out, say=said.append)
    assert not made
    reproduce.reproduce_all(out=out, say=said.append)
    assert len(made) == 2  # the others
    assert sum(line.startswith("paths/toy needs the data set omniglot") for line in said) == 1
    assert "needs the data set omniglot" in (out / "index.html").read_text()


@pytest.mark.slow
def test_where_the_data_set_is_the_figure_is_made_and_stays_when_it_goes(drawn_from_data):
    said, out, place = drawn_from_data
    (place / "omniglot" / "images_background.zip").touch()  # one of two
    with pytest.raises(FileNotFoundError):
        reproduce.reproduce("paths/toy", out=out, say=said.append)
    (place / "omniglot" / "omniglot_105.npz").touch()  # instead of both
    reproduce.reproduce_all(out=out, say=said.append)
    assert (out / "paths" / "toy" / "record.json").exists()
    (place / "omniglot" / "omniglot_105.npz").unlink()
    verdict = reproduce.reproduce("paths/toy", out=out, say=said.append)["verdict"]
    assert verdict == "0 of 1 published claims confirmed, 1 not confirmed"
    assert said[-1] == "paths/toy: there already"


def test_a_variable_that_names_no_directory_is_what_is_said(drawn_from_data, monkeypatch, tmp_path):
    said, out, _ = drawn_from_data
    monkeypatch.setenv("ASYMPTOTIX_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="ASYMPTOTIX_DATA must be a directory"):
        reproduce.reproduce("paths/toy", out=out, say=said.append)


class Word:
    """Something that figures share."""

    def __init__(self, word: str) -> None:
        self.word = word

    def save(self, path) -> None:
        path.write_text(self.word)


def load_word(path) -> Word:
    if (word := path.read_text()) == "damaged":
        raise ValueError(f"{path} is damaged")
    return Word(word)


def test_what_figures_share_is_made_once_and_is_part_of_their_records(toys):
    said, out = toys
    tries: list[object] = []

    def with_word(parts: Parts, *, word: str):
        def make(unfinished):
            tries.append(unfinished)
            unfinished.write_text("so far")
            return Word(word)

        shared = parts.shared("word.txt", make, load_word, lambda found: "" if found.word == word else "another word")
        return panels(size=(3, 2))[0], Findings(remarks=[shared.word])

    for name in ("paths/one", "paths/two"):
        size = Size(0.1, 0.1, {"word": "yes"})
        figure(name, shows="A word", source="here", quick=size, paper=Size(0.1, 0.1, {"word": "no"}))(with_word)
        assert reproduce.reproduce(name, out=out, say=said.append)["remarks"] == ["yes"]
    place = out / "paths" / "shared"
    assert tries == [place / "word_unfinished.txt"]
    assert [path.name for path in place.iterdir()] == ["word.txt"]
    record = json.loads((out / "paths" / "two" / "record.json").read_text())
    assert "../shared/word.txt" in record["files"]
    for other, line in (("damaged", "is damaged"), ("maybe", "of something else and computed anew: another word")):
        said.clear()
        (place / "word.txt").write_text(other)  # so that both figures are out of date
        reproduce.reproduce("paths/one", out=out, say=said.append)
        assert any(line in words for words in said)
        assert (place / "word.txt").read_text() == "yes"
    assert len(tries) == 3
