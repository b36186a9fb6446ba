"""In-context recall: a shorter name of `icl_theory.papers.recall`."""

from icl_theory.papers.recall import __all__ as __all__
from icl_theory.papers.recall import __dir__ as __dir__
from icl_theory.papers.recall import __getattr__ as __getattr__
