"""The HTTP API's side that decides: requests in, answers out, without a socket."""
