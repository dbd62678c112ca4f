"""From the settings of Conduit's plugins, which are all text, to the options of ours.

Read `translate` first: it applies `middleware` (settings of Conduit's SDK), then what differs between Conduit's plugins
and ours, then takes the settings that are options of ours by name. `translation` is what they work on.
"""
