"""The history room reads the logs of pull requests again, to explain them and to tune."""
