from .concentration import concentration_probability as concentration_probability
from .enumeration import STEP as STEP
from .enumeration import differences as differences
from .enumeration import direct as direct
from .enumeration import enumerable as enumerable
from .enumeration import functions_of as functions_of
from .enumeration import lipschitz_values as lipschitz_values
from .enumeration import prompts as prompts
