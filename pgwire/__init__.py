"""The Postgres wire protocol v3 and its replication sub-protocol as sans-IO state machines.


The caller feeds bytes, asks for messages, and gets bytes to send. There are no sockets here, except
in the last five modules, which connect a state machine to a socket.

    commands      the text of a replication command  <-> a value
    replication   the payload of a CopyData          <-> a value ('w', 'k', 'r', 'h')
    messages      a message's payload                <-> a value
    extended_query  the messages that a walsender refuses
    startup       the packets before the first message, and the options in them
    auth          SCRAM-SHA-256, both halves
    certificate   the hash of a certificate, for channel binding
    framing       a stream of bytes                   -> frames
    connection    the messages that are legal now: one table for both halves
    handshake     from the first byte to "authenticated", both halves
    errors        the errors, with SQLSTATEs
    blocking      a server connection on a blocking socket
    copy_stream   CopyData on it, in both directions: the hot path
    channel       the state machine connected to the socket
    interrupt     signals from other threads to the thread of a connection
    transport     the bytes of that socket, plain or TLS


Law: for any input, the pure modules raise only `ProtocolError`, `ConnectionRefused` and
`CommandSyntaxError`, always terminate, and hold at most one message of a limited length. This
package imports none of its own modules, so that importing a pure module imports no socket.
"""
