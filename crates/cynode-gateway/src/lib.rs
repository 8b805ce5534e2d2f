//! The MCP edge: envelope, authentication, gate, forwarding, tools.
