"""A deployment, looked at: from a loop's settings to the brokers, topics, rights and group that it needs.

Looks, and changes nothing: no topic is created, no offset committed, no group joined, no record written.
``examine`` does it all within a bound. Called by ``streamloop doctor``.
"""
