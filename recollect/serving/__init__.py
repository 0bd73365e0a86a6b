"""The service: predictions with precedents over HTTP, from a history that grows while it answers."""
