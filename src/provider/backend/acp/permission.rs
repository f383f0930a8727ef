//! The agent's request for permission, and the response to it.

use agent_client_protocol_schema::v1::{
    PermissionOption as Offered, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionResponse,
    SelectedPermissionOutcome, ToolCallUpdate,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::provider::backend::{PermissionAnswer, PermissionKind, PermissionOption};

/// A request for permission. Options that can't be parsed can't be chosen.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PermissionQuestion {
    pub(super) session_id: String,
    pub(super) tool_call: ToolCallUpdate,
    #[serde(default)]
    options: Vec<Value>,
}

impl PermissionQuestion {
    pub(super) fn options(&self) -> Vec<PermissionOption> {
        let offered = self.options.iter().filter_map(|option| Offered::deserialize(option).ok());
        offered
            .map(|option| {
                let kind = match option.kind {
                    PermissionOptionKind::AllowOnce => PermissionKind::AllowOnce,
                    PermissionOptionKind::AllowAlways => PermissionKind::AllowAlways,
                    PermissionOptionKind::RejectAlways => PermissionKind::RejectAlways,
                    _ => PermissionKind::RejectOnce,
                };
                PermissionOption::new(option.option_id.0.to_string(), option.name, kind)
            })
            .collect()
    }
}

/// Returns the response that expresses this answer. If the answer is `None`, the turn was cancelled, or the agent
/// withdrew the request.
pub(super) fn outcome(answer: Option<PermissionAnswer>, options: &[PermissionOption]) -> Value {
    use PermissionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};

    let of = |kinds: [PermissionKind; 2]| {
        kinds.iter().find_map(|kind| options.iter().find(|option| option.kind == *kind))
    };
    let chosen = match answer {
        Some(PermissionAnswer::Allow) => of([AllowOnce, AllowAlways]),
        Some(PermissionAnswer::Choose(id)) => options.iter().find(|option| option.id == id),
        // `AllowWith` becomes a rejection, because the protocol can't express that the tool gets a different input.
        Some(PermissionAnswer::Reject(_) | PermissionAnswer::AllowWith(_)) => of([RejectOnce, RejectAlways]),
        None => None,
    };
    let outcome = match chosen {
        Some(option) => RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option.id.clone())),
        // `answer` is `None`, or the agent does not offer an option for it.
        None => RequestPermissionOutcome::Cancelled,
    };
    json!(RequestPermissionResponse::new(outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_one_of_the_offered_options() {
        let question: PermissionQuestion = serde_json::from_value(json!({
            "sessionId": "s", "toolCall": { "toolCallId": "t" }, "options": [
                { "optionId": "always", "name": "Always", "kind": "allow_always" },
                { "optionId": "odd", "name": "Odd", "kind": "allow_on_sundays" },
                { "optionId": "no", "name": "No", "kind": "reject_once" },
            ] }))
        .unwrap();
        let options = question.options();
        let chosen = |answer| outcome(answer, &options)["outcome"]["optionId"].clone();
        assert_eq!(chosen(Some(PermissionAnswer::Allow)), "always");
        assert_eq!(chosen(Some(PermissionAnswer::Reject("no".into()))), "no");
        assert_eq!(chosen(Some(PermissionAnswer::Choose("no".into()))), "no");
        for cancelled in [None, Some(PermissionAnswer::Choose("odd".into()))] {
            assert_eq!(outcome(cancelled, &options), json!({ "outcome": { "outcome": "cancelled" } }));
        }
        assert_eq!(outcome(Some(PermissionAnswer::Allow), &[])["outcome"]["outcome"], "cancelled");
    }
}
