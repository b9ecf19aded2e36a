"""Figures of deep attention at tiny sizes: their records hold the numbers that are known."""

import json

import pytest

from asymptotix.figures import FIGURES, deep


@pytest.mark.slow
def test_thresholds_against_the_skip(tmp_path):
    made = deep.fig1_right(skips=(1.0,), tolerance=0.05, out=tmp_path, progress=False)
    made.save(tmp_path, 1.0)
    record = json.loads((tmp_path / "record.json").read_text())
    found = {claim["what"]: claim for claim in record["claims"]}
    first, second = (float(found[f"{name} threshold at skip 1"]["found"].split()[0]) for name in ("first", "second"))
    assert first == pytest.approx(0.1854779, abs=2e-7)  # quadrature of another kind
    assert second == pytest.approx(0.7194, abs=0.04)  # known to 0.0003, here to the tolerance
    assert record["verdict"] == "1 of 3 published claims confirmed, 2 not confirmed"
    assert (tmp_path / "fig1-right.png").stat().st_size > 10_000


def test_every_figure_has_both_sizes():
    names = [name for name in FIGURES if name.startswith("deep/")]
    assert len(names) == 7
    assert all(set(FIGURES[name].sizes) == {"quick", "paper"} for name in names)
    assert FIGURES["deep/fig3-right"].needs == ("trec", "bert-vocab")
