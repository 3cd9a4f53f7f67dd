"""The benchmark behind `aiomooncake bench`. It needs the extra `bench`.

How a number comes about:

    run          starts a cluster, runs scenarios, writes the result file
    scenarios    who is compared, under which load, in which order
    generator    one process for each contender; the parent's end of it
    worker       that process: its event loop, its client, nothing else
    closedloop   callers that ask again when they were answered: throughput, CPU
    openloop     arrivals planned ahead, latency from the planned start: the tail
    clients      the engine, the official client, and what people build from it today; bare sockets as the floor
    delay        a proxy process that makes the master as far away as real ones are
    report       the HTML page, the pictures and the table, all from the result file
"""
