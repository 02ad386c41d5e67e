"""What a message costs: streamloop beside bare loops and Java's Parallel Consumer (`make bench`)."""
