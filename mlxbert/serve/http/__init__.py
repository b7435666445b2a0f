"""The HTTP server: connections, access control, the application, and monitoring."""
