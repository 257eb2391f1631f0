"""The endpoints of the HTTP API, a module for each kind of object; `http.table` collects their ``ROUTES``."""
