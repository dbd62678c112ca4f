"""The servers that tests of any folder may ask for; each starts when the first test does."""

pytest_plugins = ["postgres_server"]
