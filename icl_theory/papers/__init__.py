"""Papers: their statements held against runs, the audit of all of them, and a file or folder for each."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
