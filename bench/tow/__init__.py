"""What the suites of the tow measure."""
