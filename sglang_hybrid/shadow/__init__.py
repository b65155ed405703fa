"""Shadow caches of a running server, in a process of their own.

The server sends windows of request records (`records`), the process lets one simulated
cache per arm (`arms`) serve them (`online`), and reports what each would have saved.
`client` is the server's end, `process` the other, `messages` what passes between them.
Needs core, sim, numpy and the standard library; never torch or SGLang.
"""
