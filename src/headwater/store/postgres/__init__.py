"""A store in PostgreSQL, which several servers share: DESIGN.md has the reasons."""
