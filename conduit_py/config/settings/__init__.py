"""From the settings of Conduit's plugins, which are all text, to the options of ours."""
