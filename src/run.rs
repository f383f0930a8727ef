//! The data of runs, which agents report and stores keep: prompts, responses, pauses, and the ends of runs.
//!
//! A *run* is everything from an idle agent to an idle agent. A [`Prompt`] starts it or is staged during it, as
//! [`Accepted`] states. A [`Response`] is the result of a step, of a turn or of the whole run. A [`PendingUse`] is a
//! tool use that waits for a decision. [`RunEnd`] is how the run has ended. A [`Schedule`] sends a prompt at set times.
//!
//! This module contains pure data. An [`Agent`](crate::agent::Agent) runs the prompts, and its
//! [`Event`](crate::agent::Event)s contain this data. The record of a turn in flight is in
//! [`store::custom`](crate::store::custom), because only stores keep it.

mod end;
mod error;
mod failure;
mod pause;
mod prompt;
pub(crate) mod record;
mod response;
mod schedule;
mod settings;
mod spec;

pub use end::{RunEnd, RunOutcome};
pub use error::{Error, ErrorKind};
pub use failure::Failure;
pub use pause::{Decided, PendingUse, SubAgentUse};
pub use prompt::{Accepted, KnownPrompt, Next, Prompt, PromptId, PromptState};
pub(crate) use prompt::{ClientTools, MAX_ID};
pub(crate) use record::{BranchPoint, TurnRecord};
pub use response::Response;
pub use schedule::{Missed, Schedule, Timing};
pub use settings::Settings;
pub use spec::{RunAt, RunSpec};
