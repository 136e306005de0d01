"""`python -m towline` is the command line."""

from towline.cli import main

main()
