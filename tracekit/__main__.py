"""``python -m tracekit``."""

if __name__ == "__main__":  # worker processes import this module too, and need no command line
    from tracekit.cli import main

    main()
