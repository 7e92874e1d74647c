"""Handlers of the RPC methods, one file for each noun.

A handler takes the call and a record of parameters, and returns a record."""
