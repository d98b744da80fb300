"""Serving a host: connections, the table of methods, the lease, listening on TCP."""
