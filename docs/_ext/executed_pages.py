"""Warn about a tutorial that was built without a picture; `make docs` treats the warning as an error."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def require_picture(app: Sphinx, doctree: nodes.document, name: str) -> None:
    folder, _, page = name.rpartition("/")
    if folder == "tutorials" and page != "index" and not any(doctree.findall(nodes.image)):
        logger.warning("no picture was drawn when this tutorial was executed", location=name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", require_picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
