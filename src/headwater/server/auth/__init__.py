"""Access control: scopes, tokens, JWTs, signed URLs, and the check of every request before its handler runs.

scopes, callers    what a credential allows
rules, tokens      the auth file and its tokens; `editing` changes the file
issuers, keys      JWTs; `fetching` gets the keys of an issuer from its URL
signing            URLs that can be read without a token
authority          the check
held               live reads, which end when their credential expires or is revoked
"""
