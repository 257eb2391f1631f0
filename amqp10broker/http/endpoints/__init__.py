"""The endpoints of the HTTP API, a module for each kind of object.

Each has ``ROUTES``; `http.table` has them all.
"""
