"""Redirect links that leave docs/ to the page of the site with the same content: pages serve site and repository."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

#: Target in the repository, as linked from a page in docs/ -> page of the site.
ON_THE_SITE = {
    "../README.md": "index.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
    "../CITATION.cff": "papers.md",
    "../examples/errata": "examples.md#errata",
    "../examples": "examples.md",
    "../benchmarks": "performance.md",
}
LINK = re.compile(r"\]\((?P<target>\.\./[^)\s]+)\)")


def redirect(app: Sphinx, name: str, source: list[str]) -> None:
    if "/" in name:
        return
    source[0] = LINK.sub(lambda found: f"]({ON_THE_SITE.get(found['target'], found['target'])})", source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", redirect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
