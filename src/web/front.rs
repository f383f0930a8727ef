//! The parts that the protocols for chat front ends share. The routes of the AI SDK and of AG-UI use all of them, the
//! native routes use the addresses of files.
//!
//! - `exchange` groups the messages of a conversation as a chat shows them.
//! - `intent` finds the commands that a posted request asks for.
//! - `readers` counts the open streams of each conversation, and ends runs that nobody reads any more.
//! - `stop` ends the run that a client means, and no other.
//! - `files` turns files into addresses, and addresses back into files.
//! - `media_types` finds the exact media types of files.

pub(super) mod exchange;
pub(super) mod files;
pub(super) mod intent;
pub(super) mod media_types;
pub(super) mod readers;
pub(super) mod stop;
