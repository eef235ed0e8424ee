"""`python -m tiltmeter` is the command line."""

from tiltmeter.cli.app import main

if __name__ == "__main__":
    main()
