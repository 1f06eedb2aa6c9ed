"""The vocabulary of each wire, pure and shared by server and client."""
