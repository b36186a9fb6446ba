"""`python -m icl_theory.cli`, the same as `icl-theory`."""

from icl_theory.__main__ import main

main()
