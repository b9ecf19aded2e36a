"""The site says what there is: public names with examples that run, pages that lead somewhere, short tutorials."""

import doctest
import inspect
import re
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest

import asymptotix as asx

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
OF_A_PAPER = ("sequence_index", "attention_index", "attention_paths")
THEORY = (*OF_A_PAPER, "outliers", "scaling")
#: Equations that a page has at the least: the last pages add to another one.
FEWEST = dict.fromkeys(OF_A_PAPER, 9) | {"outliers": 4, "scaling": 6}

#: Public names whose docstring has no example yet. It may only become shorter: one that has got an example must go.
WITHOUT_EXAMPLE: set[str] = set()
#: Names that are no classes or functions of ours.
NOT_EXPLAINED = {"__version__"}
NAMES = sorted(set(asx.__all__) - NOT_EXPLAINED)


def examples_of(name: str) -> list[doctest.Example]:
    """What the docstring of a public name shows and does not skip."""
    found = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(asx, name)) or "")
    return [example for example in found if not example.options.get(doctest.SKIP)]


@pytest.mark.parametrize("name", NAMES)
def test_public_name_has_an_example(name):
    doc = inspect.getdoc(getattr(asx, name)) or ""
    assert doc.strip(), f"{name} has no docstring"
    if name in WITHOUT_EXAMPLE:
        assert not examples_of(name), f"{name} has got an example: take it off the list WITHOUT_EXAMPLE"
    else:
        assert examples_of(name), f"{name} has no example that runs"
        assert inspect.ismodule(getattr(asx, name)) or re.search(r"^Examples\n-+$", doc, re.MULTILINE), name


def test_the_list_names_public_names():
    assert set(NAMES) >= WITHOUT_EXAMPLE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_EXAMPLE])
def test_example_runs(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(warnings, "filters", warnings.filters[:])  # an example may change them
    found = getattr(asx, name)
    names = {"asx": asx, **vars(inspect.getmodule(found))}
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(found) or "", names, name, None, 0)
    said: list[str] = []
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=said.append)
    assert result.failed == 0, "".join(said)


def test_every_public_name_is_in_the_reference():
    reference = "".join(text for page, text in PAGES.items() if page.startswith("api/"))
    documented = set(re.findall(r"auto\w+:: asymptotix\.(\w+)\n", reference))
    assert documented == set(NAMES)


#: Text for readers that has links: the pages of the site, and what GitHub shows in the top folder.
LINKED = {path: path.read_text(encoding="utf-8") for path in [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]}


def prose(text: str) -> str:
    """A page without its blocks of code, in which brackets and hashes mean something else."""
    return re.sub(r"^(```+|~~~+)[^\n]*\n.*?^\1[ ]*$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Where a link into a page can lead: its headings, as GitHub and the site number them, and names of its own."""
    text, found = prose(LINKED[path]), set()
    for heading in re.findall(r"^#+ (.*?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        again = sum(other == name or re.fullmatch(rf"{re.escape(name)}-\d+", other) is not None for other in found)
        found.add(f"{name}-{again}" if again else name)
    return found | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


def relative_links(text: str) -> list[str]:
    """What a page points to by a path: in brackets, in lists of references, and in HTML."""
    inline = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", text)
    listed = re.findall(r"^\[[^]]+\]:\s+(\S+)", text, re.MULTILINE)
    html = re.findall(r'(?:href|src)="([^"]+)"', text)
    return [link for link in [*inline, *listed, *html] if not re.match(r"[a-z][a-z+.-]*:", link)]


def dead(path: Path) -> list[str]:
    """Those of the links of a page that lead to no file, or to none of its headings."""
    found = []
    for link in relative_links(prose(LINKED[path])):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and (target not in LINKED or anchor not in anchors(target))):
            found.append(link)
    return found


@pytest.mark.parametrize("path", LINKED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_link_is_dead(path):
    assert dead(path) == []


def test_a_dead_link_is_found(tmp_path, monkeypatch):
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    links = ["[a](gone.md)", "[b](other.md#gone)", "[c](#gone)", '<img src="gone.png">', "[d]: gone.txt"]
    fine = ["[e](other.md#two-words)", "[f](#top)", "[g](https://example.org/gone)", "```\n[h](gone.md)\n```"]
    for path, text in ((page, "\n".join(["# Top", *links, *fine])), (other, "## Two words!\n")):
        path.write_text(text)
        monkeypatch.setitem(LINKED, path, text)
    assert sorted(dead(page)) == ["#gone", "gone.md", "gone.png", "gone.txt", "other.md#gone"]


@pytest.mark.parametrize("page", PAGES)
def test_roles_and_includes_lead_somewhere(page):
    here = (DOCS / page).parent
    for target in re.findall(r"\{doc\}`(?:[^`<]*<)?([^`<>]+)>?`", PAGES[page]):
        assert (here / f"{target}.md").exists(), target
    for target in re.findall(r"\{(?:literal)?include\} (\S+)", PAGES[page]):
        assert (here / target).exists(), target


@pytest.mark.parametrize("theory", THEORY)
def test_every_equation_says_what_computes_it(theory):
    """Between a numbered equation and the one after the next: two may share a sentence."""
    parts = re.split(r"```\{math\}\n:label: (\S+)\n", PAGES[f"theory/{theory}.md"])
    labels, texts = parts[1::2], parts[2::2]
    assert len(labels) >= FEWEST[theory]
    for position, label in enumerate(labels):
        assert re.search(r"\{(func|class|meth|attr)\}`~?asymptotix\.", "".join(texts[position : position + 2])), label
    assert "## Symbols" in PAGES[f"theory/{theory}.md"]
    assert ("## Translation" in PAGES[f"theory/{theory}.md"]) == (theory in OF_A_PAPER)


def file_of(name: str) -> Path:
    """The file in which what a page refers to is defined; of a public name, the one that the package takes it from."""
    parts = name.split(".")
    if parts[1] in NAMES:
        parts = getattr(asx, parts[1]).__module__.split(".")
    paths = [(ROOT / "src").joinpath(*parts[:n]).with_suffix(".py") for n in range(len(parts), 0, -1)]
    return next(path for path in paths if path.exists())


CITES = re.compile(r"[Ee]quations? ([\w, \n-]+) of\s+docs/theory/(\w+)\.md\.")
CITED = {
    path: [(set(re.split(r",\s+", labels)), page) for labels, page in CITES.findall(path.read_text(encoding="utf-8"))]
    for path in sorted((ROOT / "src").rglob("*.py"))
}


@pytest.mark.parametrize("theory", THEORY)
def test_files_cite_the_equations_that_they_compute(theory):
    """Page and file lead to each other: an equation names a file that cites it, what a file cites is on the page."""
    parts = re.split(r"```\{math\}\n:label: (\S+)\n", PAGES[f"theory/{theory}.md"])
    labels, texts = parts[1::2], parts[2::2]
    for position, label in enumerate(labels):
        after = "".join(texts[position : position + 2])
        files = {file_of(name) for name in re.findall(r"\{\w+\}`~?(asymptotix\.[\w.]+)`", after)}
        assert any(label in known and page == theory for file in files for known, page in CITED[file]), label
    cited = [(path.name, known) for path, found in CITED.items() for known, page in found if page == theory]
    assert len(cited) >= FEWEST[theory] - 1  # one file may compute two
    assert [(name, known - set(labels)) for name, known in cited if known - set(labels)] == []


@pytest.mark.parametrize("tutorial", ["deep_attention", "training", "attention_paths"])
def test_tutorial_is_short_and_ends_in_something_to_change(tutorial):
    text = PAGES[f"tutorials/{tutorial}.md"]
    cells = re.findall(r"```\{code-cell\} python3\n(.*?)```", text, re.DOTALL)
    shown = [cell for cell in cells if "remove-cell" not in cell]
    lines = [line for cell in shown for line in cell.splitlines() if line.strip()]
    assert 10 < len(lines) <= 40
    assert "plt.show()" in text
    assert text.rindex("## ") == text.index("## Now change this")


@pytest.mark.slow
def test_trained_weights_enter_the_theory(capsys):
    """The example prints what its page shows, as far as training does not depend on the machine, of one network."""
    names = runpy.run_path(str(DOCS / "own" / "weights.py"), run_name="__main__")
    shown = PAGES["own/weights.md"].split("It prints")[1].split("```")[1].strip()
    printed = capsys.readouterr().out.strip()
    number = r"\d+\.(?:\d+)?"
    assert re.sub(rf"{number}\s*", "", printed) == re.sub(rf"{number}\s*", "", shown)
    found, expected = (np.array(re.findall(number, text), float) for text in (printed, shown))
    np.testing.assert_allclose(found, expected, atol=0.03)  # single precision, 300 steps: the last digits differ
    weights, tokens = names["weights"], names["test"][:20]
    roots = {name: np.sqrt(weights[name].shape[-1]) for name in ("embedding", "value", "readout")}
    V0, V, a = (root * weights[name] for name, root in roots.items())
    outputs = names["network"].forward(asx.Weights(V0, [V], a), tokens)
    np.testing.assert_allclose(outputs, names["output"](weights, tokens), atol=1e-5)  # single precision of JAX


def test_signs_have_one_colour_everywhere():
    """No picture of signed numbers chooses colours of its own: red would be positive in one and negative in another."""
    scripts = [path for folder in ("examples", "src") for path in sorted((ROOT / folder).rglob("*.py"))]
    sources = [*PAGES.values(), *(path.read_text(encoding="utf-8") for path in scripts)]
    chosen = [word for text in sources for word in re.findall(r"\bRdBu\w*", text)]
    assert chosen == [asx.plot.SIGNED_COLOURS]  # where it is defined
    assert sum("SIGNED_COLOURS" in text for text in sources) >= 4


def test_every_status_is_explained():
    missing = [status.code for status in asx.Status if f"| `{status.code}` |" not in PAGES["debugging.md"]]
    assert not missing


def test_every_example_and_benchmark_is_shown():
    examples = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples").rglob("*.*"))]
    examples = [path for path in examples if path.endswith((".py", ".toml"))]
    assert len(examples) > 10
    assert [path for path in examples if f"../{path}" not in PAGES["examples.md"]] == []
    benchmarks = [f"benchmarks/{path.name}" for path in sorted((ROOT / "benchmarks").glob("*.py"))]
    assert [path for path in benchmarks if f"`{path}`" not in PAGES["performance.md"]] == []


@pytest.mark.parametrize(
    ("name", "theory"),
    [("BayesOptimal", "sequence_index"), ("RiskMinimization", "attention_index"), ("PathPosterior", "attention_paths")],
)
def test_problems_cite_the_page_of_their_equations(name, theory):
    assert f"docs/theory/{theory}.md" in (inspect.getdoc(getattr(asx, name)) or "")
    assert f"~asymptotix.{name}`" in PAGES[f"theory/{theory}.md"]
