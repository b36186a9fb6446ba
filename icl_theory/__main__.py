"""The command `python -m icl_theory`, which does the same as `icl-theory`.

Ctrl-C ends it with one line and status 130, also while modules are still being loaded.
"""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        # Imported here so that Ctrl-C during the import is caught, too.
        from icl_theory.cli import main as run

        run()
    except (KeyboardInterrupt, ImportError) as error:
        # Ctrl-C may become an ImportError while a compiled module is loaded.
        from icl_theory.engine.interrupts import is_pressed

        if not is_pressed(error):
            raise
        sys.stderr.write("interrupted\n")
        # By convention, a program that a signal has ended has the status 128 plus the
        # number of the signal. The number of SIGINT, which Ctrl-C sends, is 2.
        sys.exit(130)


if __name__ == "__main__":
    main()
