"""The syntax and terms of each protocol, shared by server and client. No I/O."""
