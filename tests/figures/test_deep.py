"""Figures of deep attention at tiny sizes: their records hold the numbers that are known."""

import json

import pytest

from asymptotix.figures import FIGURES, deep


def test_thresholds_against_the_skip(tmp_path):
    made = deep.fig1_right(skips=(1.0, 2.0), tolerance=0.02, out=tmp_path, progress=False)
    made.save(tmp_path, 1.0)
    record = json.loads((tmp_path / "record.json").read_text())
    found = {claim["what"]: claim for claim in record["claims"]}
    first = [float(found[f"first threshold at skip {skip}"]["found"].split()[0]) for skip in (1, 2)]
    assert first == pytest.approx([0.1854779, 0.1742703], abs=2e-7)  # quadrature of another kind
    second = float(found["second threshold at skip 1"]["found"].split()[0])
    assert second == pytest.approx(0.7194, abs=0.02)  # known to 0.0003, here to the tolerance
    wrong = [what for what, claim in found.items() if not claim["holds"]]
    assert len(wrong) == 4  # both thresholds at both skips
    assert record["verdict"] == "wrong in 4 of 5 claims"
    assert (tmp_path / "fig1-right.png").stat().st_size > 10_000


def test_every_figure_has_both_sizes():
    names = [name for name in FIGURES if name.startswith("deep/")]
    assert len(names) == 7
    without = [name for name in names if FIGURES[name].make is None]
    assert without == ["deep/fig3-right"]
    assert all(set(FIGURES[name].sizes) == {"quick", "paper"} for name in names if name not in without)
