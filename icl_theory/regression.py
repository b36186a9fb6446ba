"""In-context nonlinear regression: a shorter name of `icl_theory.families.regression`."""

from icl_theory.families.regression import __all__ as __all__
from icl_theory.families.regression import __dir__ as __dir__
from icl_theory.families.regression import __getattr__ as __getattr__
