"""The demonstration runs in its quick form, leaves pictures and numbers behind, and says what they mean."""

from __future__ import annotations

import pytest
import xarray as xr

from asymptotix import demo

pytestmark = pytest.mark.slow


def test_the_demonstration(tmp_path, capsys):
    demo.main(tmp_path, quick=True)
    said = capsys.readouterr().out
    for name in demo.QUICK:
        folder = tmp_path / name
        title = name.rpartition("/")[2]
        assert (folder / f"{title}.png").read_bytes().startswith(b"\x89PNG")
        assert f"Picture, data and record: {folder}" in said
    with xr.open_dataset(tmp_path / "deep" / "fig1-left" / "theory.nc", engine="h5netcdf") as theory:
        assert theory["overlap"].isel(index=1, index_other=1).sel(alpha=0.6) > 0.5
    assert "first threshold, layer 2: DOES NOT HOLD" in said
    assert "published 0.14; found 0.18547" in said
    assert "width 10 beats the Gaussian-process limit" in said
