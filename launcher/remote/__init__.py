"""Machines reached over SSH: how they are reached, what is asked of them, and what is known here of their runs.

A host is something that answers requests. The far side runs these same modules, packed as one zip that is sent to it
once and run by its Python over one channel of one connection, so nothing is installed there and every far request is
answered by the code that answers it here:

    address.py     where a host is, and by which transport it is reached
    connection.py  the transport `fabric`: host keys strict for the target and for every hop
    ssh_settings.py what the SSH configuration says of a host, as ssh itself reads it
    host_keys.py   which keys are known of a host
    openssh.py     the transport `openssh`: the system's ssh, its configuration and its open master connection
    archive.py     the zip of the launcher's standard-library part
    bootstrap.py   the first words on the far side, which find the zip or ask for it
    wire.py        frames on the channel: JSON, bytes, and signs of life
    host.py        this side: `Host.ask(request, ...)`, reconnecting where the connection was lost
    agent.py       the far side: reads requests, answers them
    requests.py    what can be asked, and the limits of each answer

To ask a host something new, add a line to `requests.REQUESTS`, with its deadline and size, and call
`host.connect(address).ask("name", admitted, key=value)`. `admitted` turns what came into the value that was asked for,
with the functions of `launcher.runs.admit`, or raises `Refused`.
"""
