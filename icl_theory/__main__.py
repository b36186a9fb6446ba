"""`python -m icl_theory` is `icl-theory`.

Ctrl-C gives one line and status 130, also while it loads what it needs.
"""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from icl_theory.cli import main as run

        run()
    except (KeyboardInterrupt, ImportError) as error:
        from icl_theory.engine.interrupts import is_pressed

        if not is_pressed(error):
            raise
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
