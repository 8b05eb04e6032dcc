"""Hosts reached over SSH: transport, agent, protocol, file transfer."""
