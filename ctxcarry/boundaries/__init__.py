"""The places where work moves, one file each."""
