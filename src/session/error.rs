use crate::{
    agent::Status,
    run::{Error, ErrorKind, PromptId},
    store::ConversationId,
    tree::NodeId,
};

/// The greatest length of a title in bytes.
const MAX_TITLE: usize = 1024;

/// Checks the length of a title. The length is limited because lists repeat titles and because search indexes limit the
/// length of an entry.
pub(crate) fn check_title(title: Option<&str>) -> Result<(), Error> {
    let length = title.map_or(0, str::len);
    if length <= MAX_TITLE {
        return Ok(());
    }
    let text =
        format!("the title has {length} bytes, but at most {MAX_TITLE} are allowed; use a shorter title");
    let error = Error::new(ErrorKind::InvalidTitle, text);
    Err(error.with_member("length", length).with_member("limit", MAX_TITLE))
}

/// Converts an error of the session's agent into the error that the session returns.
pub(super) fn of_agent(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Busy => {
            error.typed("activity").map_or(error, |status: Status| Error::busy("session", status))
        }
        // The session itself has refused the prompt.
        ErrorKind::StoreBehind | ErrorKind::Draining => {
            error.cause().and_then(|cause| cause.downcast_ref()).cloned().unwrap_or(error)
        }
        _ => error,
    }
}

pub(super) fn unknown_node(node: NodeId) -> Error {
    let text = format!("the tree has no node {node}; `Session::tree` returns the existing nodes");
    Error::new(ErrorKind::UnknownNode, text).with_member("node", node)
}

pub(super) fn not_an_attachment(node: NodeId, block: usize) -> Error {
    let text = format!("block {block} of node {node} is not an attachment; give the index of one");
    Error::new(ErrorKind::NotAnAttachment, text).with_member("node", node).with_member("block", block)
}

pub(super) fn unknown_prompt(id: &PromptId) -> Error {
    let text = format!(
        "no prompt with the id {id} is known, because it was not accepted, was returned unused, or is older than the \
         last 32 prompts with ids; if it was not accepted, send it"
    );
    Error::new(ErrorKind::UnknownPrompt, text).with_member("prompt", id)
}

pub(crate) fn damaged_turn(problem: &str) -> Error {
    let text = format!(
        "the turn in flight is damaged ({problem}); discard it with `SessionBuilder::recover` to open the rest of the \
         conversation"
    );
    Error::new(ErrorKind::DamagedTurn, text)
}

impl Error {
    /// Returns the error for a change of the labels of a sub-agent.
    pub(crate) fn id_of_a_sub_agent(id: &ConversationId) -> Self {
        let text = "An id that begins with `sub-` belongs to a sub-agent. Choose another one.";
        Self::new(ErrorKind::SubAgent, text).with_member("conversation", id)
    }

    pub(crate) fn labels_of_a_sub_agent(id: &ConversationId) -> Self {
        let text = format!("conversation {id} has the labels of its root; set the labels of the root");
        Self::new(ErrorKind::SubAgent, text).with_member("conversation", id)
    }
}
