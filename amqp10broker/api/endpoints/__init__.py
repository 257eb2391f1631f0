"""The endpoints of the HTTP API, a module for each kind of object; `api.table` collects their ``ROUTES``."""
