"""The processors that come with conduit-py, each in a module or package of its name.

The other modules are shared: `field_processor` (replaces the value of one field), `registry` (of schemas), and for
states `record_key` and `exact_value`.
"""
