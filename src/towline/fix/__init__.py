"""The fix room turns a failure, an advisory or a request into at most one pull request.

`pipeline` runs the stages in order, one module each: `plan`, `checks`, `publish`. `fixers` makes
the patches.
"""
