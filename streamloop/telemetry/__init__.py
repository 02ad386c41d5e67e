"""What a run shows of itself: metrics, and where they go. Reads plain counters; decides nothing."""
