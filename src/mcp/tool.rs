//! The tools of a server, and the names under which a model calls them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, ResourceContents, Tool as WireTool};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{
    McpError, McpTools, SkippedTool, ToolHints, call,
    connection::LONGEST,
    incoming::{TOO_DEEP, is_empty, restore},
    server::{self, ListedTools, ServerConnection},
};
use crate::{
    Session,
    message::{Attachment, ResultBlock, Text},
    run::ErrorKind,
    session::WeakSession,
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

/// The members of a tool and its schema that are always objects.
const OBJECTS: [&str; 5] = ["inputSchema", "properties", "patternProperties", "$defs", "definitions"];

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
    for mut tool in listed.tools {
        match readable_tool(&mut tool) {
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

/// Reads a tool without the descriptions that can't be read, and with objects in place of empty lists and null.
pub(super) fn readable_tool(tool: &mut Value) -> serde_json::Result<WireTool> {
    restore(tool, &|name, member| match name {
        "required" if member.is_null() => Some(json!([])),
        _ => ((member.is_null() || is_empty(member)) && OBJECTS.contains(&name)).then(|| json!({})),
    });
    lenient(tool, &["icons", "_meta", "outputSchema", "title", "annotations"])
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

// Converts results of servers to outputs of tools.

/// The media types of files that become attachments.
const ACCEPTED: [&str; 6] =
    ["image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp", "application/pdf"];

/// Converts the result of a call.
pub(super) fn output(result: CallToolResult) -> ToolOutput {
    let mut blocks: Vec<ResultBlock> = result.content.into_iter().map(block).collect();
    if let Some(value) = result.structured_content
        && !blocks.iter().any(|block| repeats(block, &value))
    {
        blocks.push(Text::new(value.to_string()).into());
    }
    let output = ToolOutput::from(blocks);
    if result.is_error == Some(true) { output.failed() } else { output }
}

/// Converts the result of a call that rmcp can't read as a whole. Blocks that can't be read become notes that quote them. A
/// result without a list of blocks is itself the structured content. Returns `None` if the result does not end the call.
pub(super) fn partial_output(mut result: Value) -> Option<ToolOutput> {
    let mut readable = CallToolResult::default();
    if let Some(members) = result.as_object_mut() {
        if members.shift_remove("resultType").is_some_and(|kind| kind != "complete") {
            return None;
        }
        members.shift_remove("_meta");
        let is_error = members.shift_remove("isError");
        // A failure must not look like a success, whatever its form.
        readable.is_error = is_error.map(|is_error| !matches!(is_error, Value::Bool(false) | Value::Null));
    }
    if let Some(Value::Array(blocks)) = result.get("content") {
        let described = &["icons", "_meta", "annotations"];
        let read = |block| lenient(block, described).unwrap_or_else(|_| unknown_block(block));
        readable.content = blocks.iter().map(read).collect();
        if blocks.iter().any(|block| block["type"] == "error") {
            readable.is_error = Some(true);
        }
    }
    if let Some(value) = result.get_mut("structuredContent") {
        readable.structured_content = Some(value.take());
    } else if !result["content"].is_array() && result.as_object().is_none_or(|members| !members.is_empty()) {
        readable.structured_content = Some(result);
    }
    Some(output(readable))
}

/// Returns a note that quotes a block: its text, or else its JSON without the data of files.
fn unknown_block(block: &Value) -> ContentBlock {
    let mut quoted = block.clone();
    for place in ["", "/resource"] {
        if let Some(Value::Object(members)) = quoted.pointer_mut(place) {
            members.retain(|name, member| !matches!(&**name, "data" | "blob") || !member.is_string());
        }
    }
    let text = block["text"].as_str().map_or_else(|| quoted.to_string(), str::to_owned);
    ContentBlock::text(format!("[The server sent a block of an unknown kind: {text}]"))
}

/// Reads a value. If that fails, removes one of the listed members, which only describe the value, or as many of them as
/// necessary, in their order.
fn lenient<T: DeserializeOwned>(value: &Value, descriptive: &[&str]) -> serde_json::Result<T> {
    T::deserialize(value).or_else(|error| {
        let without = |value: &mut Value, member: &str| {
            value.as_object_mut()?.shift_remove(member)?;
            T::deserialize(&*value).ok()
        };
        let mut rest = value.clone();
        let alone = || descriptive.iter().find_map(|member| without(&mut value.clone(), member));
        alone().or_else(|| descriptive.iter().find_map(|member| without(&mut rest, member))).ok_or(error)
    })
}

/// Returns whether a block contains the structured content, as the protocol recommends. Some servers send a text, and the
/// same text as the only member of an object.
fn repeats(block: &ResultBlock, value: &Value) -> bool {
    let ResultBlock::Text(text) = block else { return false };
    let only =
        value.as_object().filter(|members| members.len() == 1).and_then(|members| members.values().next());
    only.is_some_and(|only| only == &text.text)
        || serde_json::from_str(&text.text).is_ok_and(|text: Value| text == *value)
}

fn block(content: ContentBlock) -> ResultBlock {
    match content {
        ContentBlock::Text(text) => Text::new(text.text).into(),
        ContentBlock::Image(image) => file("an image", &image.mime_type, image.data, None),
        ContentBlock::Audio(audio) => file("audio", &audio.mime_type, audio.data, None),
        ContentBlock::Resource(resource) => embedded(resource.resource),
        ContentBlock::ResourceLink(link) => {
            let (name, uri) = (clip(&link.name, LONGEST), clip(&link.uri, LONGEST));
            let about = link.description.as_deref().map(|about| format!(" ({})", clip(about, LONGEST)));
            Text::new(format!("Resource {name}: {uri}{}", about.unwrap_or_default())).into()
        }
        _ => Text::new("[The server sent a block of an unknown kind.]").into(),
    }
}

fn embedded(resource: ResourceContents) -> ResultBlock {
    match resource {
        // A text is not sent as a file, because many services accept no text files.
        ResourceContents::TextResourceContents { uri, text, .. } => {
            Text::new(format!("Resource {}:\n{text}", clip(&uri, LONGEST))).into()
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            let uri = clip(&uri, LONGEST).into_owned();
            let media_type = mime_type.as_deref().unwrap_or("application/octet-stream");
            file(&format!("the resource {uri}"), media_type, blob, Some(uri))
        }
        _ => Text::new("[The server sent a resource of an unknown kind.]").into(),
    }
}

/// Returns the media type of an image by its first bytes. Services refuse an image whose bytes are not of the declared
/// type.
fn image_type(data: &str) -> Option<&'static str> {
    let start = BASE64_STANDARD.decode(data.get(..16)?).ok()?;
    Some(match &*start {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => "image/webp",
        _ => return None,
    })
}

/// Returns an attachment, or a text in its place. By default, a request with an attachment that the service does not
/// accept fails, so only the kinds that most services accept become attachments.
fn file(what: &str, media_type: &str, data: String, name: Option<String>) -> ResultBlock {
    let declared = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let kind = image_type(&data).map_or(declared, str::to_owned);
    let reason = if !ACCEPTED.contains(&&*kind) {
        "models do not accept this kind in results of tools"
    } else if BASE64_STANDARD.decode(&data).is_err() {
        "its data is not valid base64"
    } else {
        let mut attachment = Attachment::base64(kind, data);
        attachment.name = name;
        return attachment.into();
    };
    Text::new(format!("[The server sent {what} ({}), left out: {reason}.]", clip(media_type, LONGEST))).into()
}

// Replaces a session's tools when the server's list of tools changes.

/// How long to wait after a change before the list is read, so that many changes in a row cause only one request for
/// the list.
const SETTLE: Duration = Duration::from_millis(200);

/// How long to wait after a failed attempt. The time doubles with each further failure, up to [`LONGEST_RETRY`].
const RETRY: Duration = Duration::from_secs(5);

const LONGEST_RETRY: Duration = Duration::from_mins(5);

/// The shortest time after which an expired list is read again, even if the server sets a shorter one.
const SHORTEST_TTL: Duration = Duration::from_secs(1);

pub(super) fn follow(server: &Arc<ServerConnection>, session: &Session) {
    let mut changes = server.changes();
    // The list may have changed since the session got its tools, so it counts as changed.
    changes.mark_changed();
    // The task holds neither the server nor the session while it waits.
    let (server, session) = (Arc::downgrade(server), session.downgrade());
    tokio::spawn(async move {
        tokio::select! {
            () = session.closed() => {}
            _ = adopt_changes(&server, &session, &mut changes) => {}
        }
    });
}

/// Applies changes until the server or the session is gone, and then returns `None`.
async fn adopt_changes(
    server: &Weak<ServerConnection>,
    session: &WeakSession,
    changes: &mut watch::Receiver<u64>,
) -> Option<()> {
    // A list during which the list has changed again may have caused the change itself, because it began a new session.
    let (mut ttl, mut failures, mut restless) = (None, 0, 0);
    loop {
        match ttl {
            None => changes.changed().await.ok()?,
            Some(ttl) => {
                // If the server is lost, an expired list does not cause a reconnection. The next connection counts as a
                // change of the list, so the list is read then.
                if timeout(ttl, changes.changed()).await.is_err() && !server.upgrade()?.is_connected() {
                    changes.changed().await.ok()?;
                }
            }
        }
        sleep(SETTLE.saturating_mul(1 << restless).min(LONGEST_RETRY)).await;
        let server = server.upgrade()?;
        changes.borrow_and_update();
        if server.is_over() {
            return None;
        }
        let listed = async {
            let listed = server.list().await?;
            Ok::<_, McpError>((listed.ttl, tools(&server, listed).await?.tools))
        };
        match listed.await {
            Ok((expiry, tools)) => {
                (ttl, failures) = (expiry.map(|ttl| ttl.max(SHORTEST_TTL)), 0);
                adopt(session, &server, tools.into()).await?;
                restless = if changes.has_changed().ok()? { (restless + 1).min(11) } else { 0 };
            }
            Err(error) => {
                if failures == 0 {
                    let server = &server.settings.name;
                    tracing::warn!(server, %error, "a changed list of tools can't be read; it is tried again");
                }
                ttl = Some(RETRY.saturating_mul(1 << failures).min(LONGEST_RETRY));
                failures = (failures + 1).min(10);
            }
        }
    }
}

/// The tools that the server has offered and that are still in use, by their addresses in memory. While a tool is in the
/// map, no other tool can get its address.
type McpToolsInUseByAddress = BTreeMap<usize, Arc<dyn Tool>>;

fn address(tool: &Arc<dyn Tool>) -> usize {
    Arc::as_ptr(tool).addr()
}

/// Replaces the tools as soon as the session is idle. Returns `None` if the session has ended or refuses the change.
async fn adopt(session: &WeakSession, server: &ServerConnection, tools: Arc<[Arc<dyn Tool>]>) -> Option<()> {
    loop {
        session.idle().await?;
        let session = session.upgrade()?;
        let offered = lock(&server.offered).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        let known: McpToolsInUseByAddress = offered.into_iter().map(|tool| (address(&tool), tool)).collect();
        let state = session.state().await.ok()?;
        let present = state.config().tools.iter().filter(|tool| known.contains_key(&address(tool)));
        if present.map(declared).eq(tools.iter().map(declared)) {
            return Some(());
        }
        let tools = Arc::clone(&tools);
        let adopted = session.configure(move |config| {
            config.tools = with_replaced(&config.tools, &known, &tools);
            Ok(())
        });
        match adopted.await {
            Ok(()) => return Some(()),
            // A prompt has started another run. Wait again until the session is idle.
            Err(error) if error.kind() == ErrorKind::Busy => {}
            Err(error) => {
                tracing::debug!(%error, "changed tools are not adopted");
                return None;
            }
        }
    }
}

/// Returns the parts of a tool by which `adopt` finds out whether a list has changed.
fn declared(tool: &Arc<dyn Tool>) -> (&str, Cow<'_, str>, &Schema, bool, Replay) {
    (tool.name(), tool.description(), tool.schema(), tool.requires_approval(), tool.replay())
}

/// Returns the set with `tools` in place of the known tools. The new tools are inserted where the first known tool was.
fn with_replaced(present: &ToolSet, known: &McpToolsInUseByAddress, tools: &[Arc<dyn Tool>]) -> ToolSet {
    let place = present.iter().position(|tool| known.contains_key(&address(tool))).unwrap_or(present.len());
    let others = |tool: &&Arc<dyn Tool>| !known.contains_key(&address(tool));
    let before = present.iter().take(place).filter(others);
    let after = present.iter().skip(place).filter(others);
    let mut set = ToolSet::new();
    // If a new tool has the same name as a tool of the application, the set keeps the application's tool.
    let taken: BTreeSet<String> = present.iter().filter(others).map(|tool| tool.name().to_owned()).collect();
    let new = tools.iter().filter(|tool| !taken.contains(tool.name()));
    for tool in before.chain(new).chain(after) {
        if let Err(error) = set.insert(Arc::clone(tool)) {
            tracing::warn!(%error, "a tool of an MCP server is not adopted");
        }
    }
    set
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

#[cfg(test)]
mod content_tests {
    use serde_json::json;

    use super::*;
    use crate::message::Source;

    fn converted(result: Value) -> ToolOutput {
        output(serde_json::from_value(result).unwrap())
    }

    #[test]
    fn output_each_kind_of_content_becomes_its_block() {
        let found = converted(json!({ "isError": true, "content": [
            { "type": "text", "text": "a" },
            { "type": "image", "mimeType": "image/png", "data": "aGk=" },
            { "type": "image", "mimeType": "image/svg+xml", "data": "aGk=" },
            { "type": "image", "mimeType": "image/png", "data": "aGk" },
            { "type": "image", "mimeType": "image/png", "data": "/9j/4AAQSkZJRgABAQ==" },
            { "type": "image", "mimeType": "image/jpeg", "data": "UklGRhQAAABXRUJQVlA4IA==" },
            { "type": "audio", "mimeType": "audio/wav", "data": "aGk=" },
            { "type": "resource", "resource": { "uri": "file:///a", "text": "hi" } },
            { "type": "resource", "resource": { "uri": "file:///b", "blob": "aGk=", "mimeType": "IMAGE/GIF; a=b" } },
            { "type": "resource", "resource": { "uri": "file:///b", "blob": "aGk=" } },
            { "type": "resource_link", "name": "c", "uri": "file:///c" },
        ] }));
        let described = |block: &ResultBlock| match block {
            ResultBlock::Text(text) => text.text.clone(),
            ResultBlock::Attachment(attachment) => match &attachment.source {
                Source::Base64 { data } => format!("{} {data} {:?}", attachment.media_type, attachment.name),
                Source::Url { url } => url.clone(),
            },
        };
        assert!(found.is_error);
        assert_eq!(
            found.blocks.iter().map(described).collect::<Vec<_>>(),
            [
                "a",
                "image/png aGk= None",
                "[The server sent an image (image/svg+xml), left out: models do not accept this kind in results of \
                 tools.]",
                "[The server sent an image (image/png), left out: its data is not valid base64.]",
                "image/jpeg /9j/4AAQSkZJRgABAQ== None",
                "image/webp UklGRhQAAABXRUJQVlA4IA== None",
                "[The server sent audio (audio/wav), left out: models do not accept this kind in results of tools.]",
                "Resource file:///a:\nhi",
                r#"image/gif aGk= Some("file:///b")"#,
                "[The server sent the resource file:///b (application/octet-stream), left out: models do not accept \
                 this kind in results of tools.]",
                "Resource c: file:///c",
            ]
        );
    }

    #[test]
    fn output_structured_content_is_kept_unless_a_text_repeats_it() {
        let with = |content: Value, is_error: bool| {
            let value = json!({ "a": 1, "b": 2 });
            converted(json!({ "content": content, "structuredContent": value, "isError": is_error }))
        };
        let text = |text: &str| json!({ "type": "text", "text": text });
        assert_eq!(with(json!([]), false), r#"{"a":1,"b":2}"#.into());
        assert_eq!(with(json!([text("{ \"b\": 2, \"a\": 1 }")]), false), r#"{ "b": 2, "a": 1 }"#.into());
        let wrapped = json!({ "content": [text("no")], "structuredContent": { "result": "no" } });
        assert_eq!(converted(wrapped), "no".into());
        let both = vec![Text::new("no").into(), Text::new(r#"{"a":1,"b":2}"#).into()];
        assert_eq!(with(json!([text("no")]), false), ToolOutput::from(both.clone()));
        assert_eq!(with(json!([text("no")]), true), ToolOutput::from(both).failed());
    }
}
