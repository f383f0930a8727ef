//! Tests with a real session: its snapshots and events go through the translator, and the frames through the client's
//! fold.

mod lists;
mod pauses;
mod property;
mod requests;
mod rig;
mod streams;
