from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# The default is the same examples every time; HYPOTHESIS_PROFILE=thorough looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=40, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=600, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C is ignored where tests are run in the background
