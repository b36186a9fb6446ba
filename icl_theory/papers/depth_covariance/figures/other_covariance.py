"""
Layers on another covariance
============================

Mean squared error of L layers that share the matrix Γ = LΣ⁻¹, on infinitely long
prompts of a rotated covariance Σ′. On prompts of the covariance Σ these layers have no
error. Depth helps up to the angle of the grey line, where an eigenvalue of I − Σ⁻¹Σ′
reaches −1, and harms beyond.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from icl_theory.cli.figures import script
from icl_theory.papers.depth_covariance.risk import SymmetricRisk
from icl_theory.papers.depth_covariance.statements import rotated_covariance
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# A line style for each depth, so that the curves can be told apart in grey.
STYLES = ("-", "--", "-.", ":")
# Arguments of `figure` for a quick drawing.
QUICK = {"points": 5, "depths": (1, 2)}


def figure(
    *, d: int = 5, depths: tuple[int, ...] = (1, 2, 4, 6), points: int = 40
) -> Figure:
    """Draw the errors against the angle of rotation, a curve for each of the depths.

    ``points`` is the number of angles.
    """
    covariance = np.diag(np.arange(1.0, d + 1.0) ** -1.0)
    inverse = np.linalg.inv(covariance)
    angles = np.linspace(0.05, 1.5, points)
    spectral_radii = []  # of I - Σ⁻¹Σ′, the factor of the error in each layer
    errors = np.empty((len(depths), points))
    for column, angle in enumerate(angles):
        rotated = rotated_covariance(covariance, float(angle))
        eigenvalues = np.linalg.eigvals(np.eye(d) - inverse @ rotated)
        spectral_radii.append(float(np.abs(eigenvalues).max()))
        for row, depth in enumerate(depths):
            risk = SymmetricRisk(rotated, math.inf, depth)
            # The loss is half the mean squared error.
            errors[row, column] = 2.0 * risk.loss(depth * inverse)
    curves = []
    for depth, error, style, colour in zip(depths, errors, STYLES, CYCLE, strict=False):
        name = f"{depth} layer{'s' if depth > 1 else ''}"
        curves.append(Curve(name, angles, error, style=style, colour=colour))
    # The radius grows with the angle on this range, so interpolation gives the angle of
    # a radius.
    angle_of_radius_1 = float(np.interp(1.0, spectral_radii, angles))
    curves.append(
        Curve(
            "spectral radius 1",
            [angle_of_radius_1, angle_of_radius_1],
            [errors.min(), errors.max()],
            style="-",
            colour="grey",
        )
    )
    scales = ("linear", "log")
    panel = Panel(
        curves, "angle", "mean squared error", "$N=\\infty$", scales, legend=True
    )
    return draw_panels([panel], size=(3.8, 2.6))


if __name__ == "__main__":
    script(__file__)
