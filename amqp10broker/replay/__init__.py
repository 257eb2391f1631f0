"""The client's side of recorded connections, played again, and what a broker does otherwise than recorded.

No socket and no clock: a recording, bytes and times come in; bytes, and differences, come out.
"""
