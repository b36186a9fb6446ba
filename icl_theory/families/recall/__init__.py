"""In-context recall: the task, its exact risks, closed forms, a sampled trainer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
