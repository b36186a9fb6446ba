"""Linear attention, a shorter name of `icl_theory.papers.linear_attention`."""

from icl_theory.papers.linear_attention import __all__ as __all__
from icl_theory.papers.linear_attention import __dir__ as __dir__
from icl_theory.papers.linear_attention import __getattr__ as __getattr__
