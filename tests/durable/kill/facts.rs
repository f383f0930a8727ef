//! The ledger: facts that the processes write to a file and sync before they continue.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Write as _,
    path::Path,
};

use omni_agent::{
    message::Message,
    run::{PromptId, RunEnd},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::{Kind, Stop};

/// Something that has happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Fact {
    /// A prompt is about to be sent.
    Sending { conversation: String, prompt: String },
    /// The prompt was accepted.
    Accepted { prompt: String },
    /// A decision was accepted. `mark` is the text by which its effect is recognised.
    Decided { tool_use: String, mark: Option<String>, is_rejected: bool },
    /// The early end of the prompt's run was accepted.
    Stopped { prompt: String, stop: Stop },
    /// The end of a run that was not stopped by the model.
    Ended { conversation: String, end: Value },
    /// A tool has begun. Its effect is this line.
    Began { tool_use: String, kind: Kind, key: String, input: Value },
    /// A model has got a request for this root or its sub-agent. No other request has this number of tokens.
    Requested { root: String, tokens: u64 },
    /// All prompts of the conversation have ended.
    Finished { conversation: String },
}

/// A fact, and the number of the process that has written it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) life: u64,
    pub(crate) fact: Fact,
}

/// The writer of one process.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: File,
    life: u64,
}

impl Ledger {
    pub(crate) fn open(path: &Path, life: u64) -> Self {
        Self { file: File::options().create(true).append(true).open(path).unwrap(), life }
    }

    /// Writes a fact. Returns when it is on the disk.
    pub(crate) fn note(&self, fact: Fact) {
        // If a process was killed in the middle of a line, the next line is a separate one nevertheless.
        let line = format!("\n{}\n", serde_json::to_string(&Line { life: self.life, fact }).unwrap());
        (&self.file).write_all(line.as_bytes()).unwrap();
        self.file.sync_data().unwrap();
    }
}

/// The facts of all processes so far.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) lines: Vec<Line>,
    pub(crate) accepted: BTreeSet<String>,
    pub(crate) begun: BTreeMap<String, BTreeSet<String>>,
    pub(crate) finished: BTreeSet<String>,
    /// The ends of runs, by conversation.
    pub(crate) ends: BTreeMap<String, Vec<RunEnd>>,
}

impl Facts {
    /// Reads the ledger. A line without an end was not written completely, so nobody has relied on it.
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut facts = Self::default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).for_each(|line| facts.add(line));
        facts
    }

    fn add(&mut self, line: Line) {
        match line.fact.clone() {
            Fact::Accepted { prompt } => {
                self.accepted.insert(prompt);
            }
            Fact::Sending { conversation, prompt } => {
                self.begun.entry(conversation).or_default().insert(prompt);
            }
            Fact::Finished { conversation } => {
                self.finished.insert(conversation);
            }
            Fact::Ended { conversation, end } => {
                self.ends.entry(conversation).or_default().push(serde_json::from_value(end).unwrap());
            }
            Fact::Began { .. } | Fact::Decided { .. } | Fact::Stopped { .. } | Fact::Requested { .. } => {}
        }
        self.lines.push(line);
    }
}

/// Returns whether the end of a run gives this prompt back, either unanswered or still staged.
pub(crate) fn gives_back(end: &RunEnd, prompt: &str) -> bool {
    leaves_unused(end, prompt) || end.unanswered.iter().any(|message| has_id(message, prompt))
}

/// Returns whether the end of a run gives this prompt back from the queue of staged prompts.
pub(crate) fn leaves_unused(end: &RunEnd, prompt: &str) -> bool {
    end.staged.iter().any(|staged| staged.id.as_ref().is_some_and(|id| id.as_str() == prompt))
}

/// Returns whether this is the message of a prompt with this id.
pub(crate) fn has_id(message: &Message, prompt: &str) -> bool {
    message.id == Some(PromptId::new(prompt).into())
}
