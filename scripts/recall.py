"""In-context recall: the loss on outputs seen in training and on others, reparameterised and with full matrices."""

from __future__ import annotations

import argparse
from pathlib import Path

import icl_theory as icl
from icl_theory.claims import Answer, Series
from icl_theory.plotting import plot_answer, save


def main() -> None:
    """Train both models on the same sentences, print the last losses and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attention", default="linear", help="linear, relu or softmax")
    parser.add_argument("--alpha", type=float, default=0.0, help="probability that the next word is noise")
    parser.add_argument("--eta", type=float, default=0.05, help="length of a step")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("recall.png"), help="the figure")
    given = parser.parse_args()

    task = icl.recall.RecallTask(V=24, triggers=3, outputs=6, alpha=given.alpha, H=17)
    full = icl.recall.TransformerRisk(task, given.attention, batch=64)
    models: dict[str, icl.Risk] = {"reparameterised": icl.recall.Reparameterised(full), "full matrices": full}
    curves = []
    for name, model in models.items():
        run = icl.descend(model, given.eta, rule="ngd", steps=given.steps)
        print(f"{name}: {run.stop_reason}")
        for kind in ("seen", "unseen"):
            loss, accuracy = run.observed[f"{kind}_loss"], run.observed[f"{kind}_accuracy"]
            print(f"  {kind:6} outputs: loss {loss[-1]:.3g}, accuracy {accuracy[-1]:.0%}")
            curves.append(Series(f"{name}, {kind}", run.t, loss, points=kind == "unseen"))
    title = "Outputs seen in training, and outputs never seen"
    save(plot_answer(Answer("recall", title, "", tuple(curves), "step", "loss (nats)", "linear")), str(given.out))
    print(f"The figure is {given.out}")


if __name__ == "__main__":
    main()
