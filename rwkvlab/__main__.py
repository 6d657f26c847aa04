"""`python -m rwkvlab`: the same as the `rwkvlab` command."""

from rwkvlab.cli import main

if __name__ == "__main__":
    main()
