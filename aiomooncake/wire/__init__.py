"""The master's RPC as bytes: no sockets, no loop, no clock.

`struct_pack` is the serialisation, `coro_rpc` the framing (both from yalantinglibs), `messages` the few calls that
an existence lookup needs.
"""
