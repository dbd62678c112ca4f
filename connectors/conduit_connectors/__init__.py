"""The connectors that come with conduit-py."""
