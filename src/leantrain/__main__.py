"""`python -m leantrain` is the command."""

from leantrain.cli import main

main()
