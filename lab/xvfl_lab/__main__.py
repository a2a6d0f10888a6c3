"""`python -m xvfl_lab`."""

from xvfl_lab.cli.main import main

if __name__ == "__main__":
    main()
