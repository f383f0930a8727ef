//! Tests with a real session. The stream turns the session's snapshots and events into frames, and the tests build
//! messages from these frames, as the client does.

mod lists;
mod pauses;
mod property;
mod requests;
mod rig;
mod slow;
mod streams;
