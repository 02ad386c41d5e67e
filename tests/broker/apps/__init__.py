"""What the tests of whole groups have in common: members, the handler that they run, and its journal."""
