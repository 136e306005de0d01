"""The app room builds the running service. It is the only room that names concrete adapters."""
