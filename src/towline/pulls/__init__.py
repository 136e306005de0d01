"""The pulls room knows the pull requests under tow.

An event becomes facts (`apply_event`, `facts`), facts become transitions (`transitions`,
`lifecycle`), and `tracker` writes what follows.
"""
