"""The file of what is finished: no failure of making or writing it reaches the work."""

import pytest

import asymptotix as asx
from asymptotix.core.driver.checkpoint import Checkpoint
from asymptotix.numerics import interrupts
from toy import ToyLearning, ToyRegression


def raising(error: BaseException):
    def make():
        raise error

    return make


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (OSError("no space left on device"), "no space left on device"),
        (ValueError("a setting that cannot be described"), "a setting that cannot be described"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_failure_is_noted_until_a_write_succeeds(error, trouble, tmp_path):
    file = Checkpoint(tmp_path / "part.nc")
    result = asx.solve(ToyLearning(ToyRegression()), alpha=[0.5], progress=False)
    file.write(raising(error))
    assert file.trouble == trouble
    assert not file.path.exists()
    file.write(lambda: result)
    assert file.trouble == ""
    assert asx.load(file.path).ds.identical(result.ds)


def test_an_interrupt_is_no_failure_to_write(tmp_path, monkeypatch):
    file = Checkpoint(tmp_path / "part.nc")
    with pytest.raises(KeyboardInterrupt):
        file.write(raising(KeyboardInterrupt()))
    monkeypatch.setattr(interrupts._requests, "insisting", True)  # and compiled code made another error of it
    with pytest.raises(KeyboardInterrupt):
        file.write(raising(SystemError("returned a result with an exception set")))
    assert file.trouble == ""
