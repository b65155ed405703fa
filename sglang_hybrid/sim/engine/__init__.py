"""Residency of a cache on the union tree, compiled: the rules of docs/simulator.md.

`cache.py` holds the arrays, `residency.py` what is resident and the events that follow,
`index.py` the victim index, `victims.py` the choice of a victim, `plan.py` admission,
`requests.py` a request's steps, `run.py` the loops over requests, `carry.py` the change to
the tree of other requests.
"""
