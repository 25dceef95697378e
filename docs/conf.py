"""The configuration of the documentation's generator, Sphinx. `make docs` builds the pages."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "Farrank"
author = "The Farrank developers"
release = importlib.metadata.version("farrank")
html_title = "Farrank"

extensions = ["myst_parser", "farrank_docs.extension"]
exclude_patterns = ["_templates", "farrank_docs", "**/*.csv", "**/*.json"]
# Links to headings are links to the slugs of their words, as on other hosts of Markdown.
myst_heading_anchors = 4
# A reference that nothing answers is a warning, and `make docs` ends at a warning.
nitpicky = True
# Decision records and reports are on their index pages alone: in the sidebar they would be a hundred lines.
suppress_warnings = ["toc.not_included"]

html_theme = "furo"
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}
html_static_path = ["_static"]
html_css_files = ["farrank.css"]
html_favicon = "../page/farrank_page/static/icon.svg"
templates_path = ["_templates"]
html_copy_source = False
html_use_index = False
html_domain_indices = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "default"
pygments_dark_style = "github-dark"
