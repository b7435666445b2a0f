"""The configuration of Sphinx for the site: `python scripts/website` calls Sphinx with this file."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from mlxbert.version import __version__

project = "mlxbert"
author = "the mlxbert authors"
version = release = __version__
language = "en"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"mlxbert {__version__}"
html_baseurl = os.environ.get("SITE_URL", "")
html_static_path = [str(Path(__file__).parent / "style.css")]
html_css_files = ["style.css"]
html_copy_source = html_show_sourcelink = False  # the pages that Sphinx reads are generated
html_show_copyright = False
html_use_index = html_domain_indices = False  # the search finds every name
html_theme_options: dict[str, object] = {"top_of_page_buttons": []}  # the pages that Sphinx reads have no address
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # examples in JSON leave values out with …
smartquotes = False  # quotes within commands and names stay as they are
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
