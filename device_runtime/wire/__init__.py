"""What crosses the link: frames, checked entries, TLS, and the file formats of GPU modules and models."""
