"""Tables, figures, notebooks and reports of runs, sweeps and claims, of any model.

Symbols, units and roles come from the attributes of a sweep's dataset and from the
labels of a run.
"""
