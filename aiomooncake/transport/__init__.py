"""Ways to carry batches of keys to a master and answers back.

`base` says what the coalescer needs; `rpc` speaks the master's protocol from the event loop; `store` asks through a
`MooncakeDistributedStore` on threads of its own.
"""
