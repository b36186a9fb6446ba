"""Run a command as it would run on other processors, one after the other.

python scripts/kernels.py python -m pytest -m answers
python scripts/kernels.py --only oldest python -m pytest tests/test_sphere.py

NumPy, OpenBLAS and the C library have several kernels for the same function, and use
the fastest one that the processor can run. The last digits of their results differ.
Variables of the environment forbid the faster kernels, so that this machine computes
as an older one would. It cannot compute as a newer one would.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import numpy as np

# This processor as it is, two generations of processors, and the oldest one.
KERNELS = ("own", "SkylakeX", "Haswell", "oldest")
# The oldest processor on which wheels of NumPy 2.4 and later run. OpenBLAS has kernels
# for earlier ones, but with the kernel for Prescott NumPy 2.5.5 crashes.
OLDEST = "Nehalem"
# Features that the first processors with AVX-512, of the generation SkylakeX, lack.
LATER = (
    "AVX512_CNL",
    "AVX512_ICL",
    "AVX512_SPR",
)


def environment(kernel: str, features: Iterable[str]) -> dict[str, str]:
    """Return the variables that choose a kernel.

    Parameters
    ----------
    kernel : str
        One of ``KERNELS``: "own" for the kernels that the libraries choose by
        themselves, or the processor whose kernels are used.
    features : iterable of str
        The features of this processor for which NumPy has special kernels.

    Examples
    --------
    >>> environment("Haswell", ["X86_V3", "X86_V4", "AVX512_ICL"])
    {'OPENBLAS_CORETYPE': 'Haswell', 'NPY_DISABLE_CPU_FEATURES': 'X86_V4 AVX512_ICL'}
    >>> environment("own", ["X86_V3"])
    {}
    """
    if kernel == "own":
        return {}
    if kernel == "SkylakeX":
        forbidden = [name for name in features if name in LATER]
    elif kernel == "Haswell":
        forbidden = [
            name for name in features if name.startswith("AVX512") or name == "X86_V4"
        ]
    else:
        forbidden = [*features]
    variables = {"OPENBLAS_CORETYPE": OLDEST if kernel == "oldest" else kernel}
    if forbidden:
        variables["NPY_DISABLE_CPU_FEATURES"] = " ".join(forbidden)
    if kernel == "oldest":
        # The C library has kernels of its own, which use these two features.
        variables["GLIBC_TUNABLES"] = "glibc.cpu.hwcaps=-AVX2,-FMA"
    return variables


def features() -> list[str]:
    """Return the features of this processor for which NumPy has special kernels."""
    return list(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))


def main(arguments: list[str]) -> int:
    """Run a command with each of `KERNELS`; return 1 if it failed with any of them.

    ``arguments`` is the command, or ``--only``, a kernel and the command.
    """
    kernels: tuple[str, ...] = KERNELS
    if arguments[:1] == ["--only"]:
        _, kernel, *arguments = arguments
        kernels = (kernel,)
    available = features()
    failed: list[str] = []
    for kernel in kernels:
        variables = environment(kernel, available)
        words = " ".join(f"{name}='{value}'" for name, value in variables.items())
        print(f"\n==== {kernel} {words}", flush=True)
        ended = subprocess.run(arguments, env=os.environ | variables, check=False)
        if ended.returncode:
            failed.append(kernel)
    if failed:
        print(f"\nfailed with {', '.join(failed)}")
        return 1
    print(f"\npassed with {', '.join(kernels)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
