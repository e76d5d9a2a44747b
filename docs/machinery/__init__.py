"""What the documentation makes of the package, its experiments and their committed results."""
