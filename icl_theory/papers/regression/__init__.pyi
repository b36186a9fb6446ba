from .theorems.checks import check_bounds as check_bounds
from .theorems.concentration import (
    concentration_probability as concentration_probability,
)
from .theorems.concentration import smallest_imbalance as smallest_imbalance
from .theorems.orderwise import fitted_constants as fitted_constants
