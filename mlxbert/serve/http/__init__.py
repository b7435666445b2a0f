"""The server itself: connections, who may ask, the application, and what it says of itself."""
