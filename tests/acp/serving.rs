//! The agent that serves a manager, driven by our own backend, by clients built on the official TypeScript and Python
//! implementations, by several clients at once in this process, and by hostile clients.

mod clients;
mod conformance;
mod durable;
mod host;
mod hostile;
mod sessions;
mod sub_agents;
mod window;
mod windows;
