//! The tools of a server, and the names under which a model calls them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use rmcp::model::{JsonObject, Tool as WireTool};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::{
    McpError, McpTools, SkippedTool, ToolHints, call,
    connection::LONGEST,
    incoming::TOO_DEEP,
    server::{self, ListedTools, ServerConnection},
};
use crate::{
    sync::lock,
    text::clip,
    tool::{Replay, Schema, Tool, ToolContext, ToolError, ToolOutput, ToolSet},
};

/// The time by which the agent's limit exceeds the client's own limit. The client's limit then applies first, and its
/// error names the reason.
const SLACK: Duration = Duration::from_secs(10);

/// The maximum length of a tool's name.
const LONGEST_NAME: usize = 128;

/// The maximum size of a tool's schema in bytes.
const LONGEST_SCHEMA: usize = 64 * 1024;

struct McpTool {
    server: Arc<ServerConnection>,
    /// The server's name for the tool.
    remote: String,
    name: String,
    description: String,
    schema: Schema,
    approval: bool,
    replay: Replay,
}

#[async_trait]
impl Tool for McpTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> Cow<'_, str> {
        (&*self.description).into()
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn timeout(&self) -> Option<Duration> {
        Some(self.server.settings.total_limit.saturating_add(SLACK))
    }

    /// Returns no limit, because the client applies its own idle limit. For this limit, the server's answers about a
    /// running task count too, which are not reported as progress.
    fn idle_timeout(&self) -> Option<Duration> {
        Some(Duration::MAX)
    }

    fn requires_approval(&self) -> bool {
        self.approval
    }

    fn replay(&self) -> Replay {
        self.replay
    }

    async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let called = call::call(&self.server, &self.remote, input, Arc::new(context)).await;
        called.map_err(|error| ToolError::new(error.to_string()))
    }
}

/// Returns the usable tools of a list, and the unusable tools with the reasons.
pub(super) async fn tools(server: &Arc<ServerConnection>, listed: ListedTools) -> Result<McpTools, McpError> {
    let settings = &*server.settings;
    let selection = &settings.selection;
    let mut skipped = Vec::new();
    let mut skip = |name: &str, reason: String| {
        let name = clip(name, LONGEST).into_owned();
        let reason = clip(&reason, LONGEST).into_owned();
        tracing::warn!(server = settings.name, tool = name, reason, "a tool of an MCP server is skipped");
        skipped.push(SkippedTool { name, reason });
    };
    let mut found = Vec::new();
    for tool in listed.tools {
        match WireTool::deserialize(&tool) {
            Err(error) => skip(tool["name"].as_str().unwrap_or_default(), error.to_string()),
            Ok(tool) if tool.name.len() > LONGEST => {
                skip(&tool.name, "its name has more than 4,096 bytes".to_owned());
            }
            Ok(tool) if selection.allowed.as_ref().is_none_or(|allowed| allowed.contains(&*tool.name)) => {
                found.push(tool);
            }
            Ok(_) => {}
        }
    }
    // The application chose the names of renamed tools, so these names take precedence over all others.
    let is_renamed = |tool: &WireTool| selection.renamed.contains_key(&*tool.name);
    let plain: Vec<&str> = found.iter().filter(|tool| !is_renamed(tool)).map(|tool| &*tool.name).collect();
    let mut given = names(&settings.name, &plain).into_iter();
    let mut seen = BTreeSet::new();
    let named: Vec<Option<String>> = found
        .iter()
        .map(|tool| match selection.renamed.get(&*tool.name) {
            Some(name) => seen.insert(name.clone()).then(|| name.clone()),
            None => given.next().flatten(),
        })
        .collect();
    // Many schemas can take long, so they are checked on another thread.
    let schemas: Vec<_> = found.iter().map(|tool| Arc::clone(&tool.input_schema)).collect();
    let checked =
        spawn_blocking(move || schemas.iter().map(|schema| checked(schema)).collect::<Vec<_>>()).await;
    let checked = server::result(checked, settings)?;
    let mut made = Vec::new();
    let mut hints = BTreeMap::new();
    for ((tool, name), schema) in found.into_iter().zip(named).zip(checked) {
        let Some(name) = name else {
            skip(&tool.name, "another tool of the server has the same name".to_owned());
            continue;
        };
        match schema {
            Err(reason) => skip(&tool.name, reason),
            Ok(schema) => {
                hints.extend(tool_hints(&tool).map(|found| (name.clone(), found)));
                made.push(Arc::new(made_tool(server, &tool, name, schema)));
            }
        }
    }
    made.sort_by(|a, b| a.name.cmp(&b.name));
    // `ToolSet::insert` also rejects a schema that does not describe an object, and an invalid name of a renamed tool.
    let mut set = ToolSet::new();
    let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
    for tool in made {
        match set.insert(Arc::clone(&tool) as Arc<dyn Tool>) {
            Ok(()) => tools.push(tool),
            Err(error) => skip(&tool.remote, error.to_string()),
        }
    }
    skipped.sort_by(|a, b| a.name.cmp(&b.name));
    let mut offered = lock(&server.offered);
    offered.retain(|tool| tool.strong_count() > 0);
    offered.extend(tools.iter().map(Arc::downgrade));
    drop(offered);
    hints.retain(|name, _| tools.iter().any(|tool| (**tool).name() == *name));
    Ok(McpTools { tools, skipped, hints })
}

/// Returns a schema that a tool can have, or the reason why it can't.
fn checked(schema: &JsonObject) -> Result<Schema, String> {
    let schema = Value::Object(schema.clone());
    let text = schema.to_string();
    if text.len() > LONGEST_SCHEMA {
        return Err("its schema has more than 64 KiB".to_owned());
    }
    if text.contains(TOO_DEEP) {
        return Err("its schema is nested too deeply".to_owned());
    }
    Schema::new(schema).map_err(|error| error.to_string())
}

/// Returns the hints about a tool, if the server gives any.
fn tool_hints(tool: &WireTool) -> Option<ToolHints> {
    let annotations = tool.annotations.clone().unwrap_or_default();
    let title = tool.title.as_ref().or(annotations.title.as_ref());
    let hints = ToolHints {
        title: title.map(|title| clip(title, LONGEST).into_owned()),
        read_only: annotations.read_only_hint,
        destructive: annotations.destructive_hint,
        idempotent: annotations.idempotent_hint,
        open_world: annotations.open_world_hint,
    };
    (hints != ToolHints::default()).then_some(hints)
}

fn made_tool(server: &Arc<ServerConnection>, tool: &WireTool, name: String, schema: Schema) -> McpTool {
    let selection = &server.settings.selection;
    let about = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
    let is_safe = tool.annotations.as_ref().is_some_and(|hints| {
        // The protocol has no keys for repeated calls, so no tool is `Replay::Keyed`.
        hints.read_only_hint == Some(true) || hints.idempotent_hint == Some(true)
    });
    let replay = if selection.trusts_hints && is_safe { Replay::Safe } else { Replay::Never };
    McpTool {
        server: Arc::clone(server),
        remote: tool.name.to_string(),
        name,
        description: clip(about, LONGEST).into_owned(),
        schema,
        approval: selection.approve_all || selection.approved.contains(&*tool.name),
        replay,
    }
}

/// Returns the name of each tool, `SERVER__TOOL`, in the order of `tools`. The result for a tool does not depend on the
/// order of the other tools. The result is `None` for a tool that repeats an earlier tool in the list.
pub(super) fn names(server: &str, tools: &[&str]) -> Vec<Option<String>> {
    let plain: Vec<_> = tools.iter().map(|tool| format!("{server}__{tool}")).collect();
    let mut uses = BTreeMap::<String, BTreeSet<&str>>::new();
    for whole in &plain {
        uses.entry(replaced(whole)).or_default().insert(whole);
    }
    let mut taken = BTreeSet::new();
    let name = |whole: &String| {
        let name = replaced(whole);
        // A name without replaced characters is always unique. A name with replaced characters gets a checksum if it
        // equals another name.
        let collides = uses[&name].len() > 1 && name != *whole;
        let name = if collides || name.len() > LONGEST_NAME { marked(&name, whole) } else { name };
        taken.insert(name.clone()).then_some(name)
    };
    plain.iter().map(name).collect()
}

/// Replaces each character that services refuse in a tool's name.
fn replaced(name: &str) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    name.chars().map(|c| if good(c) { c } else { '_' }).collect()
}

/// Returns the name with a checksum of the whole name at its end. `name` contains only ASCII characters.
fn marked(name: &str, whole: &str) -> String {
    let mark = format!("_{:08x}", crc32fast::hash(whole.as_bytes()));
    format!("{}{mark}", &name[..name.len().min(LONGEST_NAME - mark.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(server: &str, tools: &[&str]) -> Vec<String> {
        names(server, tools).into_iter().map(Option::unwrap_or_default).collect()
    }

    #[test]
    fn names_other_characters_are_replaced() {
        assert_eq!(
            named("git hub", &["read-file", "a/b", "ü"]),
            ["git_hub__read-file", "git_hub__a_b", "git_hub___"]
        );
    }

    #[test]
    fn names_collision_ends_in_checksum_in_any_order() {
        let there = named("s", &["a_b", "a/b", "a b"]);
        let mut back = named("s", &["a b", "a/b", "a_b"]);
        back.reverse();
        assert_eq!(there, back);
        assert_eq!(there[0], "s__a_b");
        assert!(there[1].starts_with("s__a_b_") && there[1] != there[2], "{there:?}");
    }

    #[test]
    fn names_long_names_stay_distinct_within_the_limit() {
        let long = "x".repeat(500);
        let longer = "x".repeat(501);
        let found = named("s", &[&long, &longer]);
        assert!(found.iter().all(|name| name.len() == LONGEST_NAME));
        assert_ne!(found[0], found[1]);
    }

    #[test]
    fn names_equal_tools_are_named_once() {
        assert_eq!(names("s", &["a", "a"]), [Some("s__a".to_owned()), None]);
    }
}
