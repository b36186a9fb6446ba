"""Tables, figures, notebooks and reports of runs, sweeps and claims, of any model.

The symbols and units of quantities, and their roles in tables and figures, come from
the attributes of a sweep's dataset and from the labels of a run.
"""
