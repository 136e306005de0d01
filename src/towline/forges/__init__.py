"""The forges room speaks with GitHub and GitLab.

`base` has the protocols, `registry` the list of forges. A forge is a folder here and one entry
there.
"""
