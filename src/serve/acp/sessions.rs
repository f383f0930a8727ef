//! Requests about sessions: their folders, the choice of their models, and the MCP servers that the client names.

#[cfg(feature = "mcp")]
use std::collections::BTreeSet;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use agent_client_protocol_schema::{
    ProtocolVersion,
    v1::{
        AgentCapabilities, CloseSessionRequest, CloseSessionResponse, DeleteSessionRequest,
        DeleteSessionResponse, Error, Implementation, InitializeRequest, InitializeResponse,
        ListSessionsRequest, ListSessionsResponse, LoadSessionRequest, LoadSessionResponse, McpCapabilities,
        McpServer, NewSessionRequest, NewSessionResponse, PromptCapabilities, ResumeSessionRequest,
        ResumeSessionResponse, SessionCapabilities, SessionCloseCapabilities, SessionConfigOption,
        SessionConfigOptionCategory, SessionConfigSelectOption, SessionDeleteCapabilities, SessionInfo,
        SessionListCapabilities, SessionResumeCapabilities, SetSessionConfigOptionRequest,
        SetSessionConfigOptionResponse,
    },
};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    entry::EditorSession,
    relay::{EditorClientInfo, EditorRelay},
    server::{EditorServer, written},
    view::EditorJoinMode,
};
#[cfg(feature = "mcp")]
use crate::mcp::McpClient;
use crate::{
    access::{EditorServers, StartRequest, Via},
    error_chain,
    manager::{OpenOptions, OpenedSession},
    session::Mode,
    store::{ConversationId, Filter, Labels, Page, Position},
    sync::lock,
    text::start,
};

/// The maximum number of sessions of one connection.
const MOST_SESSIONS: usize = 1000;

/// The number of sessions on one page of a list.
const PAGE: usize = 50;

/// How long a list waits until the last turns of the client's sessions are saved.
const SOON: Duration = Duration::from_secs(1);

/// The maximum length of a client's name, in bytes.
const MAX_NAME: usize = 256;

/// Returns the error for a conversation that the manager refuses to open, close or delete.
pub(super) fn refused(id: &ConversationId, error: &crate::Error) -> Error {
    if error.is_not_found() {
        return Error::session_not_found(id.as_str().to_owned());
    }
    let refused = if error.is_conflict() { Error::invalid_request() } else { Error::internal_error() };
    refused.data(error_chain(error))
}

impl EditorServer {
    pub(super) fn initialize(&self, request: InitializeRequest) -> Result<Value, Error> {
        let session = request.client_capabilities.session;
        *lock(&self.client) = Some(EditorClientInfo {
            name: request.client_info.map(|client| start(&client.name, MAX_NAME).into()),
            notices: session.is_some_and(|session| session.notices.is_some()),
        });
        let takes = |media_type| self.settings.takes(media_type);
        let prompts = PromptCapabilities::new().embedded_context(true);
        let prompts = prompts.image(takes("image/png")).audio(takes("audio/wav"));
        let sessions = SessionCapabilities::new()
            .list(SessionListCapabilities::new())
            .delete(SessionDeleteCapabilities::new())
            .resume(SessionResumeCapabilities::new())
            .close(SessionCloseCapabilities::new());
        let capabilities = AgentCapabilities::new()
            .load_session(true)
            .prompt_capabilities(prompts)
            .mcp_capabilities(McpCapabilities::new().http(cfg!(feature = "mcp")))
            .session_capabilities(sessions);
        let (name, version) = (self.settings.name.clone(), self.settings.version.clone());
        let response = InitializeResponse::new(ProtocolVersion::V1)
            .agent_capabilities(capabilities)
            .agent_info(Implementation::new(name, version));
        written(&response)
    }

    pub(super) async fn create(
        self: &Arc<Self>,
        request: NewSessionRequest,
        servers: NamedEditorServers,
    ) -> Result<Value, Error> {
        self.check_room()?;
        let start = self.start_request(None, request.cwd, servers).await?;
        let options = self.options(&start).await?;
        let opened = self.settings.client.manager.create(options).await;
        let opened = opened.map_err(|error| Error::internal_error().data(error_chain(&error)))?;
        let id = opened.session.id().clone();
        let options = self.join(&id, start, opened, EditorJoinMode::Resumed).await?;
        written(&NewSessionResponse::new(id.as_str().to_owned()).config_options(options))
    }

    pub(super) async fn load(
        self: &Arc<Self>,
        request: LoadSessionRequest,
        servers: NamedEditorServers,
    ) -> Result<Value, Error> {
        let LoadSessionRequest { session_id, cwd, .. } = request;
        let options = self.reopen(&session_id.0, cwd, servers, EditorJoinMode::Loaded).await?;
        written(&LoadSessionResponse::new().config_options(options))
    }

    pub(super) async fn resume(
        self: &Arc<Self>,
        request: ResumeSessionRequest,
        servers: NamedEditorServers,
    ) -> Result<Value, Error> {
        let ResumeSessionRequest { session_id, cwd, .. } = request;
        let options = self.reopen(&session_id.0, cwd, servers, EditorJoinMode::Resumed).await?;
        written(&ResumeSessionResponse::new().config_options(options))
    }

    async fn reopen(
        self: &Arc<Self>,
        id: &str,
        cwd: PathBuf,
        servers: NamedEditorServers,
        joining: EditorJoinMode,
    ) -> Result<ConfigOptions, Error> {
        let (id, labels) = self.known(id).await?;
        match self.entry(id.as_str()) {
            Ok(entry) if !entry.prompts(|prompts| prompts.is_empty()) => {
                let why = "a prompt of the session is in flight; wait for its end or cancel it";
                return Err(Error::invalid_request().data(why));
            }
            Ok(_) => {}
            Err(_) => self.check_room()?,
        }
        let start = self.start_request(Some((id.clone(), labels)), cwd, servers).await?;
        let options = self.options(&start).await?;
        let opened = self.settings.client.manager.open(&id, options).await;
        let opened = opened.map_err(|error| refused(&id, &error))?;
        self.join(&id, start, opened, joining).await
    }

    /// Parses the id of a conversation, and checks that this agent may use the conversation. Also returns its labels.
    async fn known(&self, id: &str) -> Result<(ConversationId, Labels), Error> {
        let unknown = || Error::session_not_found(id.to_owned());
        let id = ConversationId::new(id).map_err(|_| unknown())?;
        let labels = self.settings.client.permitted(&id, &[]).await.map_err(|error| refused(&id, &error))?;
        Ok((id, labels))
    }

    fn check_room(&self) -> Result<(), Error> {
        if lock(&self.entries).len() < MOST_SESSIONS {
            return Ok(());
        }
        let why = format!("{MOST_SESSIONS} sessions are in use; close some of them");
        Err(Error::invalid_request().data(why))
    }

    /// Checks the folder and connects to the servers of a new or opened session.
    async fn start_request(
        &self,
        stored: Option<(ConversationId, Labels)>,
        folder: PathBuf,
        servers: NamedEditorServers,
    ) -> Result<StartRequest, Error> {
        if !folder.is_absolute() {
            let why = format!("the folder `cwd` is `{}`; give an absolute path", folder.display());
            return Err(Error::invalid_params().data(why));
        }
        let NamedEditorServers { servers, mut warnings } = servers;
        let mut servers = connect(servers, &folder).await;
        servers.warnings.append(&mut warnings);
        let (conversation, labels) = stored.unzip();
        let labels = labels.unwrap_or_else(|| self.settings.client.principal.labels().clone());
        Ok(StartRequest { conversation, labels, model: None, via: Via::Acp { folder, servers } })
    }

    /// Asks the application for the agent of a session.
    pub(super) async fn options(&self, start: &StartRequest) -> Result<OpenOptions, Error> {
        let labels = Labels::new(start.folder().map(|folder| (FOLDER, label(folder))));
        // An observer does not keep the session open, so the manager may close the session while it is idle to make
        // room for others. The next prompt opens it again.
        let options = self.settings.client.options(start, Some(Mode::Observer)).await;
        let labelled = options.and_then(|options| options.add_labels(&labels?));
        labelled.map_err(|error| Error::internal_error().data(error_chain(&error)))
    }

    /// Adds an opened session to those of the client, and returns its options.
    async fn join(
        self: &Arc<Self>,
        id: &ConversationId,
        start: StartRequest,
        opened: OpenedSession,
        joining: EditorJoinMode,
    ) -> Result<ConfigOptions, Error> {
        let snapshot = opened.subscription.as_ref().and_then(|subscription| subscription.snapshot());
        let model = snapshot.map(|snapshot| snapshot.agent.state.model.clone()).unwrap_or_default();
        let entry = EditorSession::new(id.clone(), start, Arc::clone(&self.own));
        let old = lock(&self.entries).insert(id.clone(), Arc::clone(&entry));
        if let Some(old) = old {
            old.forget();
        }
        self.attach(&entry, opened, joining).await?;
        Ok(model_options(&self.settings.models, &model))
    }

    /// Follows an opened session. Returns when the client has the conversation so far.
    pub(super) async fn attach(
        &self,
        entry: &Arc<EditorSession>,
        opened: OpenedSession,
        joining: EditorJoinMode,
    ) -> Result<(), Error> {
        let OpenedSession { session, subscription, started, .. } = opened;
        let Some(events) = subscription else {
            return Err(Error::internal_error().data("the session has no subscription"));
        };
        if started {
            entry.request.editor().inspect(|(_, servers)| servers.follow(&session, &events));
        }
        let (joined, has_joined) = oneshot::channel();
        entry.follow(session.clone(), |number| {
            let relay = EditorRelay {
                peer: Arc::clone(&self.peer),
                client: lock(&self.client).clone().unwrap_or_default(),
                entry: Arc::clone(entry),
                number,
                session,
                settings: self.settings.clone(),
            };
            // The relay outlives the request, so it does not keep the request's span.
            tokio::spawn(relay.run(events, joining, joined))
        });
        has_joined.await.map_err(|_| Error::internal_error().data("the session was closed"))
    }

    pub(super) async fn list(&self, request: ListSessionsRequest) -> Result<Value, Error> {
        let invalid = |why: String| Error::invalid_params().data(why);
        let own = self.settings.client.principal.labels().iter();
        let mut labels: Vec<_> = own.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        if let Some(folder) = &request.cwd {
            labels.push((FOLDER.to_owned(), label(folder)));
        }
        let labels = Labels::new(labels).map_err(|error| invalid(error.to_string()))?;
        let mut page = Page::first(PAGE);
        if let Some(cursor) = request.cursor {
            let position: Position = serde_json::from_str(&cursor)
                .map_err(|error| invalid(format!("the cursor {cursor:?} is none of this list: {error}")))?;
            page = page.after(position);
        }
        // The list is read from the store, so the turns that the client has just seen must be saved first.
        let entries: Vec<_> = lock(&self.entries).values().cloned().collect();
        let saved = entries.iter().filter_map(|entry| entry.session()).map(async |session| {
            if let Err(error) = session.flush(SOON).await {
                tracing::debug!(%error, "a list may lack the last turn of a session");
            }
        });
        join_all(saved).await;
        let (manager, filter) = (&self.settings.client.manager, Filter::with(labels));
        let filter = if manager.keeps_labels() { filter.without(Labels::PARENT) } else { filter };
        let listed = manager.list((filter, page)).await;
        let listed = listed.map_err(|error| Error::internal_error().data(error_chain(&error)))?;
        let next = listed.last().filter(|_| listed.len() == PAGE).map(|last| Position::from(&last.summary));
        let next = next.map(|next| serde_json::to_string(&next)).transpose();
        let next = next.map_err(|error| Error::internal_error().data(error.to_string()))?;
        let sessions = listed.into_iter().map(|listed| {
            let summary = listed.summary;
            let known =
                summary.labels.get(FOLDER).filter(|folder| folder.starts_with('/')).map(PathBuf::from);
            // If a folder's path is too long for a label, the folder is known only if the client sends its path.
            let folder = request.cwd.clone().or(known).unwrap_or_else(|| PathBuf::from("/"));
            SessionInfo::new(summary.id.as_str().to_owned(), folder)
                .title(summary.title)
                .updated_at(summary.updated.rfc_3339())
        });
        written(&ListSessionsResponse::new(sessions.collect()).next_cursor(next))
    }

    pub(super) async fn close(&self, request: CloseSessionRequest) -> Result<Value, Error> {
        let entry = self.entry(&request.session_id.0)?;
        let closed = self.settings.client.manager.close(&entry.id).await;
        self.release(&entry).await;
        closed.map_err(|error| refused(&entry.id, &error))?;
        written(&CloseSessionResponse::new())
    }

    pub(super) async fn delete(&self, request: DeleteSessionRequest) -> Result<Value, Error> {
        // In the protocol, deleting a session that does not exist succeeds.
        let done = || written(&DeleteSessionResponse::new());
        let Ok(id) = ConversationId::new(&*request.session_id.0) else { return done() };
        let check = async { self.settings.client.permitted(&id, &[]).await.map(drop) };
        match self.settings.client.manager.delete_if(&id, check).await {
            Ok(()) => {
                if let Ok(entry) = self.entry(id.as_str()) {
                    self.release(&entry).await;
                }
                done()
            }
            Err(error) if error.is_not_found() => done(),
            Err(error) => Err(refused(&id, &error)),
        }
    }

    /// Removes a session that has ended from those of the client.
    async fn release(&self, entry: &Arc<EditorSession>) {
        // The prompts of the session are answered before this request.
        entry.finished().await;
        entry.forget();
        lock(&self.entries).remove(&entry.id);
        if let Some((_, servers)) = entry.request.editor() {
            servers.close().await;
        }
    }

    pub(super) async fn set_option(
        self: &Arc<Self>,
        request: SetSessionConfigOptionRequest,
    ) -> Result<Value, Error> {
        let entry = self.entry(&request.session_id.0)?;
        let invalid = |why: String| Error::invalid_params().data(why);
        let value = request.value.as_value_id().map(|value| value.0.to_string());
        let Some(model) = value.filter(|_| &*request.config_id.0 == MODEL) else {
            return Err(invalid(format!("there is no option {:?}", request.config_id.0)));
        };
        let session = self.open(&entry).await?;
        let used =
            session.state().await.map_err(|error| invalid(error_chain(&error)))?.config().model.clone();
        if used.name() != model && !self.settings.models.contains(&model) {
            let offered = self.settings.models.join(", ");
            return Err(invalid(format!("the model {model:?} is not offered; the models are {offered}")));
        }
        entry.choose(model.clone());
        let applied = entry.apply_choice(&session).await;
        applied.map_err(|error| Error::invalid_request().data(error_chain(&error)))?;
        let options = model_options(&self.settings.models, &model).unwrap_or_default();
        written(&SetSessionConfigOptionResponse::new(options))
    }
}

type ConfigOptions = Option<Vec<SessionConfigOption>>;

/// The id of the option.
pub(super) const MODEL: &str = "model";

/// Returns the option with the offered models, or `None` if no models are offered. The model in use is always among
/// them.
pub(super) fn model_options(models: &[String], used: &str) -> Option<Vec<SessionConfigOption>> {
    if models.is_empty() {
        return None;
    }
    let other = (!models.iter().any(|model| model == used)).then_some(used);
    let offered = other.into_iter().chain(models.iter().map(String::as_str));
    let offered: Vec<_> =
        offered.map(|model| SessionConfigSelectOption::new(model.to_owned(), model)).collect();
    let option = SessionConfigOption::select(MODEL, "Model", used.to_owned(), offered);
    Some(vec![option.category(SessionConfigOptionCategory::Model)])
}

/// The name of the label.
pub(super) const FOLDER: &str = "omni.cwd";

/// The maximum length of a label's value.
const LONGEST_LABEL: usize = 128;

/// Returns the label's value: the path, or its checksum if the path can't be a label.
pub(super) fn label(folder: &Path) -> String {
    match folder.to_str() {
        Some(path) if (1..=LONGEST_LABEL).contains(&path.len()) && !path.chars().any(char::is_control) => {
            path.to_owned()
        }
        _ => format!("crc:{:08x}", crc32fast::hash(folder.as_os_str().as_encoded_bytes())),
    }
}

/// The servers that a client names in a request, and a warning for each server whose form is unknown.
#[derive(Default)]
pub(super) struct NamedEditorServers {
    servers: Vec<McpServer>,
    warnings: Vec<String>,
}

impl NamedEditorServers {
    /// Takes the servers out of the parameters of a request. Some clients omit required members, or send an object in
    /// place of a list of names and values.
    pub(super) fn take(params: &mut Value) -> Result<Self, Error> {
        let Some(params) = params.as_object_mut() else { return Ok(Self::default()) };
        let mut named = Self::default();
        let entries = match params.insert("mcpServers".to_owned(), json!([])) {
            Some(Value::Array(entries)) => entries,
            None | Some(Value::Null) => return Ok(named),
            Some(Value::Object(entries)) if entries.is_empty() => return Ok(named),
            Some(_) => return Err(Error::invalid_params().data("`mcpServers` must be a list")),
        };
        for mut entry in entries {
            if let Some(members) = entry.as_object_mut() {
                for list in ["args", "env", "headers"] {
                    let member = members.entry(list).or_insert_with(|| json!([]));
                    if let Value::Object(pairs) = member {
                        let pairs = std::mem::take(pairs).into_iter();
                        *member =
                            pairs.map(|(name, value)| json!({ "name": name, "value": value })).collect();
                    }
                }
            }
            let name = entry["name"].as_str().unwrap_or("?").to_owned();
            if let Ok(server) = serde_json::from_value(entry) {
                named.servers.push(server);
            } else {
                let why = "its transport or its settings have an unknown form";
                named.warnings.push(unusable(&name, why));
            }
        }
        Ok(named)
    }
}

/// Returns the name of a server.
fn server_name(server: &McpServer) -> &str {
    match server {
        McpServer::Stdio(server) => &server.name,
        McpServer::Http(server) => &server.name,
        McpServer::Sse(server) => &server.name,
        _ => "?",
    }
}

/// Connects to the servers, all at the same time. A server that can't be used becomes a warning, because its editor sends
/// the same servers for each session, and the agent can work without it.
#[cfg(feature = "mcp")]
pub(super) async fn connect(servers: Vec<McpServer>, folder: &Path) -> EditorServers {
    let connected = servers.into_iter().map(async |server| {
        let name = server_name(&server).to_owned();
        let builder = match server {
            McpServer::Stdio(server) => {
                let client = McpClient::stdio(server.command).args(server.args).folder(folder);
                server
                    .env
                    .into_iter()
                    .fold(client, |client, variable| client.env(variable.name, variable.value))
            }
            McpServer::Http(server) => {
                let client = McpClient::http(server.url);
                let headers = server.headers.into_iter();
                headers.fold(client, |client, header| client.header(header.name, header.value))
            }
            _ => return Err(unusable(&name, "its transport is not supported; use stdio or HTTP")),
        };
        // The editor's user has not approved any of these tools, so each use needs an approval.
        let client = builder.name(name.clone()).approve_all().connect().await;
        let client = client.map_err(|error| unusable(&name, &error_chain(&error)))?;
        let tools = client.tools().await.map_err(|error| unusable(&name, &error_chain(&error)))?;
        for tool in tools.skipped {
            tracing::warn!(server = name, tool = tool.name, "a tool can't be used: {}", tool.reason);
        }
        Ok((name, client, tools.tools))
    });
    let (mut all, mut taken) = (EditorServers::default(), BTreeSet::new());
    for connected in futures_util::future::join_all(connected).await {
        match connected {
            Ok((name, client, tools)) => {
                // A set with two tools of the same name is invalid, so the session would not open.
                let (new, repeated): (Vec<_>, Vec<_>) =
                    tools.into_iter().partition(|tool| taken.insert(tool.name().to_owned()));
                if let Some(tool) = repeated.first() {
                    let (tool, count) = (tool.name(), repeated.len());
                    let why = format!(
                        "another server has tools with the names of {count} of its tools, such as {tool:?}"
                    );
                    all.warnings.push(unusable(&name, &why));
                }
                all.clients.push(client);
                all.tools.extend(new);
            }
            Err(warning) => all.warnings.push(warning),
        }
    }
    all
}

#[cfg(not(feature = "mcp"))]
#[allow(clippy::unused_async, reason = "as with the feature")]
pub(super) async fn connect(servers: Vec<McpServer>, _: &Path) -> EditorServers {
    let why = "the agent was built without the feature `mcp`";
    let warnings = servers.iter().map(|server| unusable(server_name(server), why)).collect();
    EditorServers { warnings, ..EditorServers::default() }
}

/// Returns the warning about a server that can't be used, and logs it.
fn unusable(name: &str, why: &str) -> String {
    tracing::warn!(server = name, "an MCP server of the editor can't be used: {why}");
    format!(
        "the MCP server {name:?} can't be used: {why}; correct the server's settings or remove the server"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_is_too_long_becomes_its_checksum() {
        assert_eq!(label(Path::new("/home/ann/project")), "/home/ann/project");
        let long = format!("/{}", "a".repeat(128));
        assert_eq!(label(Path::new(&long)), format!("crc:{:08x}", crc32fast::hash(long.as_bytes())));
        assert!(label(Path::new("/a\nb")).starts_with("crc:"));
    }

    #[test]
    fn used_model_is_always_one_of_the_options() {
        let models = ["a:1".to_owned(), "b:2".to_owned()];
        let values = |used| {
            let option = json!(model_options(&models, used).unwrap())[0].clone();
            assert_eq!(option["currentValue"], used);
            let values = option["options"].as_array().unwrap().iter().map(|option| option["value"].clone());
            values.collect::<Vec<_>>()
        };
        assert_eq!(values("b:2"), ["a:1", "b:2"]);
        assert_eq!(values("c:3"), ["c:3", "a:1", "b:2"]);
        assert!(model_options(&[], "a:1").is_none());
    }
}
