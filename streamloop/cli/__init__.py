"""The command line: ``streamloop run | check | config | version``. It is thin: the app does the work."""
