//! The items that the application has to answer, because this crate runs only functions.
//!
//! Source of the kinds: `ResponseInputItem` in the types of OpenAI's official SDKs.

use serde_json::Value;

use super::wire::text;

/// Returns the id to which the answer of this item refers. Returns `None` if the application need not answer the item.
pub(super) fn asked(item: &Value) -> Option<&str> {
    let id = match text(item, "type") {
        "custom_tool_call"
        | "local_shell_call"
        | "shell_call"
        | "apply_patch_call"
        | "computer_call"
        // A search that the service itself runs has no id for its answer.
        | "tool_search_call" => text(item, "call_id"),
        "mcp_approval_request" => text(item, "id"),
        _ => "",
    };
    Some(id).filter(|id| !id.is_empty())
}

/// Returns the id to which an answer refers. Returns `None` if the item is not an answer.
pub(super) fn answered(item: &Value) -> Option<&str> {
    let kind = text(item, "type");
    let keys = ["call_id", "approval_request_id", "id"];
    let id = keys.map(|key| text(item, key)).into_iter().find(|id| !id.is_empty());
    id.filter(|_| kind.ends_with("_output") || kind == "mcp_approval_response")
}

/// Returns the warning about an item that nothing has answered at the end of a response.
pub(super) fn warning(item: &Value) -> String {
    format!(
        "the response ends with an open item, {} `{}`, which this crate cannot answer: the item is omitted from later \
         requests, unless a user message answers it with a provider item",
        text(item, "type"),
        ["name", "call_id", "id"]
            .map(|key| text(item, key))
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or("")
    )
}
