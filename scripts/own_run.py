# mypy: ignore-errors
"""A PyTorch layer on the regression task: the curves and the figure of docs/guide/your-own-run.md.

    python scripts/own_run.py           # writes docs/guide/curves/*.csv and docs/images/own-run.png
    python scripts/own_run.py --time    # times PyTorch beside the exact gradient and the sampled step

It needs PyTorch, which the package does not. With one version on one machine the curves
are the same at every call.
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
    """Keys and queries with a matrix each, which start as PyTorch starts them."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(K, K, bias=False)
        self.query = nn.Linear(K, K, bias=False)

    def forward(self, tokens, query, labels):
        """Predict the value at the query."""
        scores = (self.key(tokens) * self.query(query)[:, None]).sum(-1) / K**0.5
        return (torch.softmax(scores, dim=1) * labels).sum(1)


def curves():
    """Return the rows of the runs that the page compares, by name, and the start of the one with two matrices."""
    torch.manual_seed(0)
    biased = Attention()
    started = Attention()
    biased.scores.bias = nn.Parameter(torch.zeros(K))
    nn.init.normal_(started.scores.weight, std=1.0)
    two = TwoMatrices()
    start = np.concatenate(
        [each.weight.detach().double().numpy() for each in (two.key, two.query)]
    )
    return start, {
        "my_run": train(Attention()),
        "half_rate": train(Attention(), rate=RATE / 2),
        "bias": train(biased),
        "started": train(started),
        "two_matrices": train(two),
    }


def write(docs):
    """Write the curves and the figure into a folder of pages."""
    start, found = curves()
    folder = docs / "guide" / "curves"
    folder.mkdir(parents=True, exist_ok=True)
    np.savetxt(folder / "start.txt", start)
    for name, rows in found.items():
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
    """Time an exact gradient, and a batch of PyTorch with one as exact as ``error``, at the same scores."""
    torch.set_num_threads(1)
    run = icl.simulate(L=L, delta=1.0, eta=RATE, K=K, N=N, noise=NOISE, above=1e-3)
    risk = icl.PopulationRisk(
        icl.Features.simplex(K, 1.0), icl.tasks.Exchangeable(L), N=N, noise=NOISE
    )
    scores = run.at(12).params * np.eye(K)
    exact = risk.gradient(scores)
    model = Attention()
    with torch.no_grad():
        model.scores.weight.copy_(torch.tensor(scores))

    def gradient(size, seed):
        tokens, query, labels, answer = prompts(
            torch.Generator().manual_seed(seed), size
        )
        begin = time.process_time()
        model.zero_grad()
        (0.5 * ((model(tokens, query, labels) - answer) ** 2).mean()).backward()
        return time.process_time() - begin, model.scores.weight.grad.double().numpy()

    pilot = 4096
    far = [
        np.linalg.norm(gradient(pilot, seed)[1] - exact) / np.linalg.norm(exact)
        for seed in range(repeats)
    ]
    needed = int(pilot * np.mean(np.square(far)) / error**2)
    parts = max(1, needed // 2**16)  # of a batch that does not fit into the cache
    seconds = parts * np.median(
        [gradient(needed // parts, seed)[0] for seed in range(repeats)]
    )
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        for _ in range(20):
            risk.evaluate(scores)
        times.append((time.process_time() - begin) / 20)
    print(
        f"exact loss and gradient {1e3 * np.median(times):.2f} ms; a gradient to {error:.0%} in its norm takes"
    )
    print(
        f"{needed:,} prompts, {1e3 * seconds:.0f} ms of PyTorch {torch.__version__} without drawing them"
    )


def steps(B=256, tokens=100, nodes=60, repeats=100):
    """Time a step on B prompts of a `TokenRisk` that samples its tokens, and of PyTorch with the same tokens."""
    values = np.linspace(-1.0, 1.0, nodes)
    kind = icl.Kind(tokens, np.full(nodes, 1 / nodes), values, spread=2.0 - values**2)
    trainer = icl.TokenRisk(kind, target=1.0).sampled(B)

    def ours(step):
        trainer.evaluate(values, step)

    def torch_of(dtype):
        mean, score = (torch.tensor(values, dtype=dtype) for _ in range(2))
        probs = torch.full((nodes,), 1 / nodes, dtype=dtype)
        deviation = torch.sqrt(2.0 - mean**2)
        score.requires_grad_()
        generator = torch.Generator()

        def step(seed):
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
    for seed in range(
        repeats
    ):  # in turn, so that all have the same share of the machine's slow minutes
        for name, way in ways.items():
            begin = time.process_time()
            way(seed)
            times[name].append(time.process_time() - begin)
    took = ", ".join(
        f"{name} {1e3 * np.median(each):.2f} ms" for name, each in times.items()
    )
    print(
        f"a step on {B} prompts of {tokens} tokens, PyTorch {torch.__version__}: {took}"
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
