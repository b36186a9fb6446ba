"""Linear attention on linear regression: exact risks, shifts, task diversity, depth, a sampled layer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
