"""`python -m mlxbert`: the command line."""

from mlxbert.cli import main

main()
