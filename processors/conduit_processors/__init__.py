"""The processors that come with conduit-py."""
