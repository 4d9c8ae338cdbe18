"""Models at rest: folders that outlive the process that wrote them."""
