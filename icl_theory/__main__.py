"""`python -m icl_theory` is `icl-theory`."""

from icl_theory.cli import main

if __name__ == "__main__":
    main()
