"""In-context recall: a shorter name of `icl_theory.families.recall`."""

from icl_theory.families.recall import __all__ as __all__
from icl_theory.families.recall import __dir__ as __dir__
from icl_theory.families.recall import __getattr__ as __getattr__
