"""The console: a web page on the control address for those who operate a group.

``application.py`` puts it together, ``access.py`` and ``session.py`` say who may do what, ``api.py`` answers
the page's questions, ``jobs.py`` does what takes long, ``static/`` is the page itself: plain HTML, CSS and
modules of JavaScript, served from the package as they are.
"""
