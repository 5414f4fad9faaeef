"""Hostile files, rounds and requests: all end in an answer or in a refusal of one line.

`mutations` breaks valid files, `files` and `integrations` hold what is broken and how it is used,
`cases` judges what comes of one case, and `run` is the command behind `make fuzz`.
"""
