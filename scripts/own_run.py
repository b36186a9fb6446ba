# mypy: ignore-errors
"""Train a PyTorch layer on the regression task, for docs/guide/your-own-run.md.

    python scripts/own_run.py           # writes docs/guide/curves/*.csv and docs/images/own-run.png
    python scripts/own_run.py --time    # times PyTorch beside the exact gradient and the sampled step

The script writes the curves and the figure of the page. It needs PyTorch, which the
package does not. With one version of PyTorch on one machine, the curves are the same at
every call.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import icl_theory as icl
from icl_theory.results import plots
from icl_theory.results.plots.style import styled

DOCS = Path(__file__).parents[1] / "docs"

# ---- the layer: the page shows it from here
# features, tokens, size of the functions, label noise
K = 8
N = 30
L = 2.0
NOISE = 0.1
BATCH = 256
RATE = 4.0
STEPS = 150


def prompts(generator, size=BATCH):
    """Draw tokens and queries as one-hot vectors, noisy labels, and the right answers."""
    # two of them differ by L, root mean square
    values = L / 2**0.5 * torch.randn(size, K, generator=generator)
    token = torch.randint(K, (size, N), generator=generator)
    query = torch.randint(K, (size,), generator=generator)
    labels = values.gather(1, token) + NOISE * torch.randn(size, N, generator=generator)
    return (
        torch.eye(K)[token],
        torch.eye(K)[query],
        labels,
        values.gather(1, query[:, None])[:, 0],
    )


class Attention(nn.Module):
    """Softmax attention whose scores are one matrix, zero at first."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(K, K, bias=False)
        nn.init.zeros_(self.scores.weight)

    def forward(self, tokens, query, labels):
        """Predict the value at the query: the mean of the labels with the attention as weights."""
        scores = (tokens * self.scores(query)[:, None]).sum(-1)
        return (torch.softmax(scores, dim=1) * labels).sum(1)


def train(model, rate=RATE, seed=2):
    """Return step, loss and its standard error for each batch, before the step that is taken on it."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(STEPS):
        tokens, query, labels, answer = prompts(generator)
        each = 0.5 * (model(tokens, query, labels) - answer) ** 2
        loss = each.mean()
        rows.append((step, loss.item(), each.std().item() / BATCH**0.5))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return rows


# ---- to here


class TwoMatrices(nn.Module):
    """Softmax attention with a matrix for keys and one for queries.

    Both start with the random weights that PyTorch gives to a linear layer.
    """

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(K, K, bias=False)
        self.query = nn.Linear(K, K, bias=False)

    def forward(self, tokens, query, labels):
        """Predict the value at the query, as `Attention` does from its own scores."""
        scores = (self.key(tokens) * self.query(query)[:, None]).sum(-1) / K**0.5
        return (torch.softmax(scores, dim=1) * labels).sum(1)


def curves():
    """Train the layers whose curves the page compares with exact runs.

    Return two results: the initial weights of the layer with two matrices, keys above
    queries, and the rows of `train` for each curve by its name.
    """
    torch.manual_seed(0)
    # A layer with biases, one with random initial scores, and one with two matrices.
    biased = Attention()
    started = Attention()
    biased.scores.bias = nn.Parameter(torch.zeros(K))
    nn.init.normal_(started.scores.weight, std=1.0)
    two = TwoMatrices()
    # Copied before the training, which changes the weights.
    start = np.concatenate(
        [layer.weight.detach().double().numpy() for layer in (two.key, two.query)]
    )
    return start, {
        "my_run": train(Attention()),
        "half_rate": train(Attention(), rate=RATE / 2),
        "bias": train(biased),
        "started": train(started),
        "two_matrices": train(two),
    }


def write(docs):
    """Write the curves and the figure into a folder of pages, ``docs``.

    Print how each curve compares with the exact run of `Attention`.
    """
    start, rows_by_name = curves()
    folder = docs / "guide" / "curves"
    folder.mkdir(parents=True, exist_ok=True)
    np.savetxt(folder / "start.txt", start)
    for name, rows in rows_by_name.items():
        lines = [f"{step},{loss:.6g},{error:.3g}" for step, loss, error in rows]
        (folder / f"{name}.csv").write_text("\n".join(["step,loss,error", *lines, ""]))
    run = icl.simulate(L=L, delta=1.0, eta=RATE, K=K, N=N, noise=NOISE, above=1e-3)
    with styled():
        figure = plots.new_figure(7.2, 3.0)
        for ax, (name, title) in zip(
            figure.subplots(1, 2, sharey=True),
            {
                "my_run": "the same training",
                "half_rate": "half the learning rate",
            }.items(),
            strict=True,
        ):
            compared = run.compare(folder / f"{name}.csv")
            compared.plot(ax)
            ax.set_title(title, fontsize=9)
            print(name, compared.remarks)
        ax.set_ylabel("")
        (docs / "images").mkdir(exist_ok=True)
        plots.save(figure, docs / "images" / "own-run.png")
    for name in ("bias", "started", "two_matrices"):
        print(name, run.compare(folder / f"{name}.csv").remarks)
    print(f"PyTorch {torch.__version__}")


def measure(error=0.01, repeats=20):
    """Time an exact gradient, and a gradient of PyTorch with a relative error.

    Both are at the scores of one step of the exact run. The batch of PyTorch is so
    large that its gradient has the relative error ``error``. Times are medians of
    ``repeats`` measurements.
    """
    torch.set_num_threads(1)
    run = icl.simulate(L=L, delta=1.0, eta=RATE, K=K, N=N, noise=NOISE, above=1e-3)
    risk = icl.PopulationRisk(
        icl.Features.simplex(K, 1.0), icl.tasks.Exchangeable(L), N=N, noise=NOISE
    )
    # The run has one number, the score of the query's own feature; other scores are 0.
    scores = run.at(12).params * np.eye(K)
    exact = risk.gradient(scores)
    model = Attention()
    with torch.no_grad():
        model.scores.weight.copy_(torch.tensor(scores))

    def gradient(size, seed):
        """Return the seconds of a gradient of PyTorch on a batch, and the gradient."""
        tokens, query, labels, answer = prompts(
            torch.Generator().manual_seed(seed), size
        )
        begin = time.process_time()
        model.zero_grad()
        (0.5 * ((model(tokens, query, labels) - answer) ** 2).mean()).backward()
        return time.process_time() - begin, model.scores.weight.grad.double().numpy()

    # The mean square error falls like one over the size of a batch. It is measured on
    # batches of this size, and the size for the wanted error follows.
    pilot = 4096
    relative_errors = []
    for seed in range(repeats):
        _, sampled = gradient(pilot, seed)
        distance = np.linalg.norm(sampled - exact)
        relative_errors.append(distance / np.linalg.norm(exact))
    needed = int(pilot * np.mean(np.square(relative_errors)) / error**2)
    # A batch that does not fit into the cache is faster in parts.
    parts = max(1, needed // 2**16)
    part_seconds = []
    for seed in range(repeats):
        spent, _ = gradient(needed // parts, seed)
        part_seconds.append(spent)
    seconds = parts * np.median(part_seconds)
    exact_seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        # A single call is too short for the clock.
        for _ in range(20):
            risk.evaluate(scores)
        exact_seconds.append((time.process_time() - begin) / 20)
    print(
        f"exact loss and gradient {1e3 * np.median(exact_seconds):.2f} ms;"
        f" a gradient to {error:.0%} in its norm takes"
    )
    print(
        f"{needed:,} prompts, {1e3 * seconds:.0f} ms of PyTorch {torch.__version__}"
        " without drawing them"
    )


def steps(B=256, tokens=100, nodes=60, repeats=100):
    """Time a step on sampled tokens, of a `TokenRisk` and of PyTorch.

    Both draw B prompts of ``tokens`` tokens from the same law: each token is at one of
    ``nodes`` nodes with a mean and a variance of its value.
    """
    values = np.linspace(-1.0, 1.0, nodes)
    kind = icl.Kind(tokens, np.full(nodes, 1 / nodes), values, spread=2.0 - values**2)
    trainer = icl.TokenRisk(kind, target=1.0).sampled(B)

    def ours(step):
        """Take a step of the package; scores are equal to the mean values."""
        trainer.evaluate(values, step)

    def torch_of(dtype):
        """Return the function of a seed that takes a step of PyTorch, in a dtype."""
        mean, score = (torch.tensor(values, dtype=dtype) for _ in range(2))
        probs = torch.full((nodes,), 1 / nodes, dtype=dtype)
        deviation = torch.sqrt(2.0 - mean**2)
        score.requires_grad_()
        generator = torch.Generator()

        def step(seed):
            """Draw prompts, and compute the gradient of their mean loss."""
            generator.manual_seed(seed)
            node = torch.multinomial(
                probs, B * tokens, replacement=True, generator=generator
            ).view(B, tokens)
            value = mean[node] + deviation[node] * torch.randn(
                B, tokens, generator=generator, dtype=dtype
            )
            score.grad = None
            (
                0.5
                * (((torch.softmax(score[node], 1) * value).sum(1) - 1.0) ** 2).mean()
            ).backward()

        return step

    ways = {
        "icl-theory": ours,
        "float64": torch_of(torch.float64),
        "float32": torch_of(torch.float32),
    }
    times = {name: [] for name in ways}
    # They take turns, so that all have the same share of the machine's slow minutes.
    for seed in range(repeats):
        for name, take_step in ways.items():
            begin = time.process_time()
            take_step(seed)
            times[name].append(time.process_time() - begin)
    medians = ", ".join(
        f"{name} {1e3 * np.median(seconds):.2f} ms" for name, seconds in times.items()
    )
    print(
        f"a step on {B} prompts of {tokens} tokens, PyTorch {torch.__version__}:"
        f" {medians}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--time", action="store_true", help="measure times instead")
    parser.add_argument(
        "--into", type=Path, default=DOCS, help="folder of the pages, docs unless given"
    )
    arguments = parser.parse_args()
    if arguments.time:
        measure()
        steps()
    else:
        write(arguments.into)
