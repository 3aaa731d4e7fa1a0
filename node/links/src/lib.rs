//! iroh: endpoint, tickets, and the stage, control and artifact protocols.
