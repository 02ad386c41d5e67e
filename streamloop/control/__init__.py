"""The group acts as one: a compacted topic tells how its members are, and what operators hold."""
