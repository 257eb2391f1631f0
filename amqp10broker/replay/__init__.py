"""The client's side of recorded connections, played again, and what a broker does otherwise than recorded.

Also what other settings would have done to it: the engines of both sides under a virtual clock.

No socket and no clock: a recording, bytes and times come in; bytes, and differences, come out.
"""
