"""How `make site` builds these pages."""

project = "milzoo"
author = "The milzoo authors"
extensions = ["myst_nb", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# `make notebooks` has run them: what they show here is what they showed there.
nb_execution_mode = "off"
nb_merge_streams = True
html_theme = "furo"
html_title = "milzoo"
exclude_patterns = ["league/*.md"]  # tables that the page has
