"""Who makes patches: `ruff`, `bump`, `command` and `llm`, and whatever else is installed."""
