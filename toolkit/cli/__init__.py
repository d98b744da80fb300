"""The commands: one thin file each. They call nothing that a user of `import toolkit` cannot call."""
