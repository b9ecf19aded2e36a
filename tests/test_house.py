"""The house is in order: no circles of files, no crowded rooms, and a name means one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "asymptotix"
#: A folder with more files than this is several rooms.
MOST_FILES = 12

FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, inside functions and for annotations too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                folder = path.parents[node.level - 1].relative_to(PACKAGE.parent).parts
                base = ".".join([*folder, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                if name in MODULES:
                    yield name
                elif base in MODULES:
                    yield base


def reachable(start: str, arrows: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in arrows[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def shared(places: dict[str, list[Path]]) -> str:
    """What is in more than one place, a line each."""
    lines = {name: ", ".join(str(path.relative_to(PACKAGE)) for path in paths) for name, paths in places.items()}
    return "\n".join(f"{name}: {line}" for name, line in lines.items() if len(places[name]) > 1)


def test_no_file_imports_in_a_circle():
    arrows = {name: set(imported(path)) - {name} for name, path in MODULES.items()}
    assert arrows["asymptotix.core.verbs"] >= {"asymptotix.core.driver.run", "asymptotix.core.result"}  # seen
    below = {name: reachable(name, arrows) for name in arrows}
    circles = {frozenset(other for other in below[name] if name in below[other]) for name in arrows}
    found = "\n".join(" <-> ".join(sorted(circle)) for circle in circles if circle)
    assert not found, f"files that import one another:\n{found}"


def test_no_folder_is_crowded():
    folders = defaultdict(list)
    for path in FILES:
        if path.name != "__init__.py":
            folders[path.parent].append(path.name)
    crowded = {str(folder.relative_to(PACKAGE)): names for folder, names in folders.items() if len(names) > MOST_FILES}
    found = "\n".join(f"{folder}: {', '.join(names)}" for folder, names in crowded.items())
    assert not found, f"folders with more than {MOST_FILES} files:\n{found}"


def test_a_file_name_means_one_thing():
    stems = defaultdict(list)
    for path in FILES:
        if path.name not in ("__init__.py", "streams.py"):  # every theory lists its random streams
            stems[path.stem].append(path)
    found = shared(stems)
    assert not found, f"files of the same name:\n{found}"


def test_a_class_name_means_one_thing():
    classes = defaultdict(list)
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(path)
    found = shared(classes)
    assert not found, f"classes of the same name:\n{found}"
