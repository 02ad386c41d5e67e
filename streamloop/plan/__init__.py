"""How large a deployment has to be: from what is known of the work to settings, each with its formula.

``calculate`` is pure; ``render`` writes what came out.
Called by ``streamloop plan``.
"""
