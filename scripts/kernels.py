"""Run a command as it would run on other processors, one after the other.

python scripts/kernels.py python -m pytest -m answers
python scripts/kernels.py --only oldest python -m pytest tests/test_sphere.py

NumPy, OpenBLAS and the C library have several kernels for the same function, and take the
fastest that the processor knows. Their last digits differ. Variables of the environment forbid
the faster ones: so this machine stands in for older ones, and not for newer ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

KERNELS = ("own", "SkylakeX", "Haswell", "oldest")


def environment(kernel: str, dispatched: dict[str, bool]) -> dict[str, str]:
    """Return the variables that choose a kernel.

    Parameters
    ----------
    kernel : str
        One of ``KERNELS``: what the libraries choose by themselves, or the processor to stand in for.
    dispatched : dict of bool
        The features for which this NumPy has kernels, by name, and whether the processor has them.

    Examples
    --------
    >>> environment("Haswell", {"AVX2": True, "AVX512F": True, "AVX512_SPR": False})
    {'OPENBLAS_CORETYPE': 'Haswell', 'NPY_DISABLE_CPU_FEATURES': 'AVX512F'}
    >>> environment("own", {})
    {}
    """
    is_forbidden: dict[str, Callable[[str], bool]] = {
        "SkylakeX": lambda feature: feature in ("AVX512_CNL", "AVX512_ICL", "AVX512_SPR"),
        "Haswell": lambda feature: feature.startswith("AVX512") or feature == "X86_V4",
        "oldest": lambda feature: True,
    }
    if kernel == "own":
        return {}
    # to forbid a feature that the processor lacks is a warning of NumPy
    forbidden = [name for name, has in dispatched.items() if has and is_forbidden[kernel](name)]
    variables = {
        "OPENBLAS_CORETYPE": "Prescott" if kernel == "oldest" else kernel,
        "NPY_DISABLE_CPU_FEATURES": " ".join(forbidden),
    }
    if kernel == "oldest":
        variables["GLIBC_TUNABLES"] = "glibc.cpu.hwcaps=-AVX2,-FMA"
    return {name: value for name, value in variables.items() if value}


def dispatched() -> dict[str, bool]:
    """Return the features for which NumPy has kernels of its own, and whether this processor has them."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return {name: bool(__cpu_features__[name]) for name in __cpu_dispatch__}


def main(arguments: list[str]) -> int:
    """Run the command with every kernel, or with one; return 1 if it failed with any."""
    kernels: tuple[str, ...] = KERNELS
    if arguments[:1] == ["--only"]:
        kernels, arguments = (arguments[1],), arguments[2:]
    features, failed = dispatched(), []
    for kernel in kernels:
        variables = environment(kernel, features)
        words = " ".join(f"{name}='{value}'" for name, value in variables.items())
        print(f"\n==== {kernel} {words}", flush=True)
        if subprocess.run(arguments, env=os.environ | variables, check=False).returncode:
            failed.append(kernel)
    print(f"\nfailed with {', '.join(failed)}" if failed else f"\npassed with {', '.join(kernels)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
