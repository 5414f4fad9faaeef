"""Tools without any idea of the domain: numbers, whole-number arithmetic, files, cores.

May import `errors` and nothing else of this package; every room may use it.
"""
