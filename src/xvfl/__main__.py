"""`python -m xvfl`."""

from xvfl.cli.main import main

if __name__ == "__main__":
    main()
