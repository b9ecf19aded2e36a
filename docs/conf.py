"""The documentation site: `make docs` builds it into build/docs, without a connection and without a warning."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import asymptotix

project = "asymptotix"
author = "asymptotix contributors"
project_copyright = author
version = release = asymptotix.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "executed_pages",
    "mathml",
    "observable_tables",
    "outside_links",
    "plain_docstrings",
]
exclude_patterns = ["README.md", "_ext", "**.ipynb_checkpoints"]
default_role = "code"
highlight_language = "none"  # formulas of docstrings; what is code says so
nitpicky = True
# Types of parameters are told in words ("int, optional"); only what looks like a name of this package must exist.
nitpick_ignore_regex = [("py:(class|obj|data|exc)", r"(?!asymptotix\.).*")]
suppress_warnings = ["ref.python"]  # an attribute named in a docstring that several classes have

# -- pages: Markdown; the tutorials are executed, and one that fails is an error of the build
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
os.environ.pop("MPLBACKEND", None)  # the kernels draw into the page
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True
nb_output_stderr = "remove"  # progress is for who waits
math_number_all = False
numfig = False

# -- the reference: from docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_preprocess_types = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# -- how it looks
html_theme = "furo"
html_title = "asymptotix"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
