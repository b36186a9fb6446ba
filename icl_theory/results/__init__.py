"""What is shown of runs, sweeps and claims: numbers, tables, notebooks, figures and reports. It knows no model.

Whatever it says of a sweep stands in the attributes of the dataset, and whatever it says of a run in its labels.
"""
