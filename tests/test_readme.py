"""What README and docs show exists and runs: blocks of Python, pictures, files."""

import ast
import re
from pathlib import Path

import pytest

import asymptotix as asx

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
BLOCKS = [(page, code) for page, text in TEXT.items() for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
FRONT = [code for page, code in BLOCKS if page == "README.md"]

#: What makes the blocks of the README short enough to be run here, in the order of the blocks.
SMALLER: list[dict[str, str]] = [
    {
        "np.linspace(0.05, 1.6, 32)": "[0.1, 0.3], tolerance=0.05",
        "thresholds(problem)": "thresholds(problem, tolerance=0.1)",
        "GAMP()": "GAMP(iterations=5)",
        "[0.3, 0.6, 1.2], dim=1000, seeds=8": "[0.3], dim=50, seeds=2",
    },
    {
        "np.geomspace(0.05, 40, 24)": "[0.2, 4.0]",
        "Adam()": "Adam(steps=20)",
        "[0.2, 1.0], dim=100, seeds=8": "[0.2], dim=10, seeds=2",
    },
    {
        "examples=100": "examples=20",
        "[10, 100, 1000, np.inf]": "[10, np.inf]",
        "NUTS()": "NUTS(warmup=20, draws=20)",
        "seeds=4": "seeds=1",
    },
]


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_block_is_python_with_public_names(page, block):
    names = {
        node.attr
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "asx"
    }
    assert names
    assert names <= set(asx.__all__)
    assert "import asymptotix as asx" in block  # every block stands on its own


def test_readme_has_a_block_and_a_picture_per_theory_and_stays_short():
    assert len(FRONT) == len(SMALLER)
    assert re.findall(r"\]\((docs/\w+\.png)\)", TEXT["README.md"]) == [
        "docs/two_layers.png", "docs/training.png", "docs/hidden_markov.png"
    ]  # fmt: skip
    assert len(TEXT["README.md"].encode()) < 8000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")  # too few steps and draws, on purpose
@pytest.mark.parametrize("number", range(len(SMALLER)))
def test_block_runs(number, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    block = FRONT[number]
    for long, short in SMALLER[number].items():
        assert long in block
        block = block.replace(long, short)
    exec(compile(block, f"block {number} of README.md", "exec"), {})
    assert "theory" in capsys.readouterr().out  # the table of the comparison


@pytest.mark.slow
def test_accuracies_that_the_readme_prints():
    (printed,) = re.findall(r"accuracy\.values\)\s+# ([\d. ]+)", TEXT["README.md"])
    lines = FRONT[2].splitlines()
    shown = next(k for k, line in enumerate(lines) if "accuracy" in line)
    names: dict = {}
    exec("\n".join(lines[:shown]), names)
    found = names["theory"].evaluate(names["data"].test_inputs, names["data"].test_labels).accuracy.values
    assert [f"{value:.3f}" for value in found] == printed.split()


@pytest.mark.parametrize("page", TEXT)
def test_pictures_and_files_that_are_named_are_there(page):
    named = re.findall(r"(?<![\w/])(?:docs|examples|tests|benchmarks)/[\w/.]+\.(?:png|py|toml|md)", TEXT[page])
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_what_does_not_hold_has_a_short_script():
    rows = re.findall(r"\| \*\*no\*\*(.*?) \|$", TEXT["docs/reproduction.md"], re.MULTILINE)
    scripts = [re.fullmatch(r": `(examples/errata/\w+\.py)`", row) for row in rows]
    assert len(rows) > 10
    for row, script in zip(rows, scripts, strict=True):
        assert script is not None, row
        assert len((ROOT / script.group(1)).read_text(encoding="utf-8").splitlines()) <= 40
