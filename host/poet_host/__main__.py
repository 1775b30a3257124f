"""`python -m poet_host`: the command line where no script is on the path."""

from .cli.main import main

main()
