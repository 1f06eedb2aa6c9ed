"""The vocabulary of subscriptions, shared by server and client."""
