"""Write mathematics into the page as MathML, which needs no script, no font and no network.

Every current browser draws MathML itself. An equation that cannot be translated causes a warning of the build, which
`make docs` treats as an error.
"""

from __future__ import annotations

import re
from typing import Any

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

logger = logging.getLogger(__name__)

#: Traces of a command or an environment that the translator does not know: its name or its symbols, left as text.
UNKNOWN = re.compile(r"\\[A-Za-z]+|&amp;|>&<|&#x0*26;|<mo />")


def translate(latex: str, node: nodes.Element, display: str) -> str:
    """Return the MathML of an equation; warn with its place if it cannot be translated."""
    try:
        mathml = latex2mathml.converter.convert(latex, display=display)
    except Exception as error:  # the translator raises many kinds
        logger.warning("cannot translate %r: %s", latex, error, location=node)
        return f"<code>{latex}</code>"
    left = UNKNOWN.findall(mathml)
    if left:
        logger.warning("unknown commands %s in %r", ", ".join(left), latex, location=node)
    return mathml


def inline(self: Any, node: nodes.math) -> None:
    self.body.append(translate(node.astext(), node, "inline"))
    raise nodes.SkipNode


def block(self: Any, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math equation"))
    self.body.append(f'<div class="formula">{translate(node.astext(), node, "block")}</div>')
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
