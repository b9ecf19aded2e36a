"""What the README shows exists: its blocks are Python, and every public name in them is one."""

import ast
import re
from pathlib import Path

import pytest

import asymptotix as asx

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_block_is_python_with_public_names(block):
    names = {
        node.attr
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "asx"
    }
    assert names
    assert names <= set(asx.__all__)


def test_pictures_and_files_are_there():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    paths = re.findall(r"(?:docs|examples|tests)/[\w/.]+\.(?:png|py|toml)", text)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
