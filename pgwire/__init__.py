"""The Postgres wire protocol v3 and its replication sub-protocol as sans-IO state machines.

Bytes are fed in, messages are asked for, bytes to send come back. No sockets here, except in the
last five modules, which join a state machine to a socket.

    commands      the text of a replication command  <-> a value
    replication   the payload of a CopyData          <-> a value ('w', 'k', 'r', 'h')
    messages      a message's payload                <-> a value
    extended_query  the messages that a walsender refuses
    startup       the packets before the first message, and the options in them
    auth          SCRAM-SHA-256, both halves
    certificate   the hash of a certificate that a proof is bound to
    framing       a stream of bytes                   -> frames
    connection    which message is legal now: one table for both halves
    handshake     from the first byte to "authenticated", both halves
    errors        what can go wrong, with SQLSTATEs
    blocking      a server connection on a blocking socket
    copy_stream   CopyData on it, in both directions: the hot path
    channel       the state machine joined to the socket
    interrupt     what other threads may tell the one that serves it
    transport     the bytes of that socket, plain or TLS

Law: whatever a peer sends, the pure modules raise nothing but `ProtocolError`, `ConnectionRefused`
and `CommandSyntaxError`, always come to an end, and hold no more than one message of named length.
This package imports nothing of its own, so that importing a pure module imports no socket.
"""
