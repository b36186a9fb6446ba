"""How the documentation is built; `make docs` puts it in docs/_build/html."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import icl_theory

ADDRESSES = tomllib.loads(
    Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8")
)["tool"]["hatch"]["metadata"]["hooks"]["custom"]
sys.path.insert(0, str(Path(__file__).parent / "_ext"))


# The gallery reads one folder; the scripts are in those of their papers.
figure_scripts = Path(__file__).parent / "_build" / "figure_scripts"
shutil.rmtree(figure_scripts, ignore_errors=True)
figure_scripts.mkdir(parents=True)
for script in Path(icl_theory.__file__).parent.glob("papers/*/figures/*.py"):
    shutil.copy(script, figure_scripts)
shutil.copy(
    Path(__file__).with_name("gallery_header.rst"),
    figure_scripts / "GALLERY_HEADER.rst",
)

project = "icl-theory"
author = "The icl-theory developers"
project_copyright = author
version = release = icl_theory.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.autosectionlabel",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "cards",
    "commands",
    "docstrings",
    "downloads",
    "explorer",
    "symbols",
    "sphinx.ext.mathjax",
    # the script and its fonts come with the site, not from a server
    "sphinx-mathjax-offline",
]
exclude_patterns = ["_build", "gallery_header.rst"]
templates_path = ["_templates"]
autosectionlabel_prefix_document = True
autosectionlabel_maxdepth = 3
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = {"math"}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

default_role = "py:obj"
nitpicky = True  # a name in backticks is one that is documented
nitpick_ignore_regex = [("py:class", ".*")]  # types of other packages
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Array": "Array", "ArrayLike": "ArrayLike"}
python_maximum_signature_line_length = 72
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
# on file systems that ignore case, the pages of a class and of the function that
# returns it would be one file
autosummary_filename_map = {
    f"icl_theory.{name}": f"icl_theory.{name}.class"
    for name in ("Answer", "Audit", "CrossCheck", "statements.Question")
}

sphinx_gallery_conf = {
    "examples_dirs": "_build/figure_scripts",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "reset_argv": "gallery.arguments",
    "image_scrapers": ("gallery.written_picture",),
    "abort_on_example_error": True,
    # what the pages of the reference take their examples from
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("icl_theory",),
    "reference_url": {"icl_theory": None},
    "within_subsection_order": "FileNameSortKey",
    "notebook_extensions": set(),
    "download_all_examples": False,
    "write_computation_times": False,
    "min_reported_time": 10**6,
    "thumbnail_size": (640, 448),
    "show_signature": False,
}

highlight_language = "none"  # of blocks without a language: formulas, output
smartquotes = False  # docstrings quote what is typed

html_theme = "pydata_sphinx_theme"
html_title = "icl-theory"
html_baseurl = ADDRESSES["documentation"]
html_sidebars = {
    page: [] for page in ("index", "tutorial", "citing", "contributing", "releasing")
}  # they have no siblings
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "icl-theory"},
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        "audit": [],
    },  # the audit's table needs the room
    "footer_start": ["copyright"],
    "footer_end": [],
    "icon_links": [
        {
            "name": "Source",
            "url": ADDRESSES["repository"],
            "icon": "fa-brands fa-git-alt",
        }
    ]
    if ADDRESSES["repository"]
    else [],
    "show_prev_next": True,
    "navigation_with_keys": False,
}
