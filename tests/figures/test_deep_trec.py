"""Fig. 3 right of deep attention: on stand-ins of the questions, and its verdicts on curves whose answer is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.figures import deep_trec
from asymptotix.figures.making.claims import PublishedFigure
from asymptotix.figures.making.registry import FIGURES
from fake_trec import write_trec

FIGURE = FIGURES["deep/fig3-right"]


def history(first, second, seeds=8):
    """Similarities 1 - (1 - start) exp(-t/tau) of layers (start, tau), tau a little different in every run."""
    steps = np.arange(0.0, 500)
    spread = 1 + 0.05 * np.linspace(-1, 1, seeds)[:, None]
    curves = np.stack([1 - (1 - start) * np.exp(-steps / (tau * spread)) for start, tau in (first, second)], axis=1)
    along, each = ("seed", "layer", "step"), ("seed", "epoch")
    return xr.Dataset(
        {
            "similarity": (along, curves),
            "score_similarity": (along, curves),
            "printed_end": (("seed", "layer"), np.full((seeds, 2), 0.1)),
            "train_loss": (each, np.ones((seeds, 2))),
            "validation_accuracy": (each, np.full((seeds, 2), 0.5)),
        },
        coords={"layer": [1, 2], "step": steps, "epoch": [1, 2]},
    )


@pytest.mark.parametrize(
    ("first", "second", "seeds", "holds"),
    [
        ((0.5, 20), (0.5, 60), 8, (True, True)),
        ((0.5, 60), (0.5, 20), 8, (False, False)),
        ((0.97, 60), (0.1, 20), 8, (True, False)),  # hardly moves
        ((0.5, 20), (0.5, 60), 4, (None, None)),  # four runs are too few for the sign test
    ],
)
def test_verdicts_follow_from_the_curves(first, second, seeds, holds):
    runs = {name: history(first, second, seeds) for name in ("released", "printed")}
    findings = deep_trec._findings(PublishedFigure("deep/fig3-right"), runs, epochs=40)
    assert [claim.holds for claim in findings.claims] == [holds[0], holds[0], holds[1], holds[1]] * 2
    assert f"and in {seeds if first[1] < second[1] else 0} of {seeds} runs" in findings.claims[2].found
    assert not any("instead of 40" in remark for remark in findings.remarks)


@pytest.mark.slow
def test_the_whole_way_on_stand_ins(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers", reason="word pieces need the package tokenizers")
    pytest.importorskip("optax", reason="training needs optax")
    folder = write_trec(tmp_path / "data")
    monkeypatch.setenv("ASYMPTOTIX_DATA", str(folder))
    monkeypatch.setattr(
        deep_trec, "_questions", lambda seeds: [asx.tasks.trec(seed=k, verify=False) for k in range(seeds)]
    )
    made = FIGURE("quick", seeds=2, epochs=2, record_every=1, out=tmp_path, progress=False)
    made.save(tmp_path, 1.0)
    record = json.loads((tmp_path / "record.json").read_text())
    assert set(record["files"]) >= {"fig3-right.png", "released.nc", "printed.nc"}
    assert record["verdict"] == "0 of 8 published claims confirmed, 8 not decided"  # two runs decide none
    assert made.datasets["released"]["step"].values.tolist() == list(range(7))  # 48 questions: three batches
    assert any("2 epochs instead of 40" in remark for remark in record["remarks"])
    assert (tmp_path / "fig3-right.png").stat().st_size > 10_000


def test_without_the_questions_one_sentence_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYMPTOTIX_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"deep/fig3-right needs the data set trec, bert-vocab: `asymptotix"):
        FIGURE("quick")
    write_trec(tmp_path)
    assert FIGURE.missing() == ""
