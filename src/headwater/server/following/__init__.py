"""Following remote tables: each followed SURL is mirrored into a local table.

policy      which SURLs may be followed
mirror      the local table: its rows are the position
handshake   registering for Notify at the remote server
follower    one SURL: requests, waits, failures
stopped     mirrors that lack rows, as durable documents
admitted    SURLs from Notify requests, as durable documents
followers   all of them: start, wake, admit, stop
control     the list of followers
"""

from headwater.server.following.followers import Followers, open_followers
from headwater.server.following.policy import FollowPolicy, parse_policy

__all__ = ["FollowPolicy", "Followers", "open_followers", "parse_policy"]
