"""`python -m recollect`: the command line, where the script `recollect` is not at hand."""

from recollect.cli import main

if __name__ == "__main__":
    main()
