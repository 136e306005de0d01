"""The remediation room acts on a pull request.

`service` logs a try first, acts, and checks whether it worked.

The reconciler and the commands of people call it.
"""
