//! Plugins over real actors: a chain of hosts with scripted engines, and scripted plugins that are right, wrong, slow,
//! stuck or broken. Whatever they do, a request has the text that it has without them.

mod lifecycle;
mod proposals;
mod seats;
mod trouble;
mod world;
