"""The handlers of the STP wire: tables that are created, appended to, read and followed."""
