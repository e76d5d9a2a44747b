"""Small networks as users write them, with what each of their leaves is, by hand."""
