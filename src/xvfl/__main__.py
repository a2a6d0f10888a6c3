"""`python -m xvfl`."""

from xvfl.cli import main

if __name__ == "__main__":
    main()
