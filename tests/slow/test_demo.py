"""Every demonstration runs in its quick form and leaves a picture and the numbers behind it."""

import importlib

import pytest

pytestmark = pytest.mark.slow

FILES = {
    "telling_chains_apart": ("hidden_markov.png", "hidden_markov.nc"),
    "training": ("training.png", "training_theory.nc", "training_runs.nc"),
    "learning_in_turn": ("two_layers.png", "theory.nc", "runs.nc", "thresholds.nc"),
}


@pytest.mark.parametrize("name", FILES)
def test_demonstration(name, tmp_path, capsys):
    importlib.import_module(f"asymptotix.demo.{name}").main(tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert "theory" in printed
    assert "nan ±" not in printed
    for file in FILES[name]:
        assert (tmp_path / file).stat().st_size > 1000
