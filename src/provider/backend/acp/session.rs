//! Opens a session and runs its turns.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use agent_client_protocol_schema::{
    ProtocolVersion,
    v1::{
        AgentCapabilities, AuthMethod, AuthenticateRequest, CancelNotification, ErrorCode, Implementation,
        InitializeRequest, InitializeResponse, LoadSessionRequest, LoadSessionResponse,
        McpServer as WireServer, NewSessionRequest, NewSessionResponse, PromptCapabilities, PromptRequest,
        ResumeSessionRequest, ResumeSessionResponse, SessionConfigId, SessionConfigKind, SessionConfigOption,
        SessionConfigOptionCategory, SessionConfigSelectOption, SessionConfigSelectOptions,
        SessionConfigValueId, SetSessionConfigOptionRequest,
    },
};
use async_trait::async_trait;
use futures_util::stream;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _},
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{
    AcpBackend,
    connection::{AcpConnection, AcpRequestFailure, not_resumed, refused},
    content,
};
use crate::{
    provider::backend::{BackendError, BackendSession, EventStream, SessionId, SessionOptions, TurnPrompt},
    sync::lock,
    time::moment_after,
};

/// How long the agent must be silent after it has loaded a session. After this silence, its repetition of the
/// conversation counts as complete.
const SILENCE: Duration = Duration::from_millis(100);

/// The time after which a cancellation is repeated. Some agents ignore a cancellation that arrives while they begin a
/// turn.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) struct AcpSession {
    connection: AcpConnection,
    id: SessionId,
    name: String,
    can: PromptCapabilities,
    /// The warnings to report with the response of the first turn.
    warnings: Mutex<Vec<String>>,
    grace: Duration,
}

/// A session that is being opened.
struct AcpSessionOpening<'a> {
    backend: &'a AcpBackend,
    connection: AcpConnection,
    until: Instant,
    sign_in: Vec<AuthMethod>,
}

/// The answer to a request that opens a session.
struct OpenedAcpSession<T> {
    session: T,
    /// The models in the form that agents used before options, which is not part of the protocol.
    models: Value,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for OpenedAcpSession<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut answer = Value::deserialize(deserializer)?;
        let models = answer.get_mut("models").map(Value::take).unwrap_or_default();
        let session = serde_json::from_value(answer).map_err(D::Error::custom)?;
        Ok(Self { session, models })
    }
}

/// The options of a session, and its models in the older form.
type OfferedModels = (Option<Vec<SessionConfigOption>>, Value);

/// Starts the program, and starts or resumes a session.
pub(super) async fn open(
    backend: &AcpBackend,
    resumed: Option<&SessionId>,
    options: &SessionOptions,
) -> Result<AcpSession, BackendError> {
    let folder = backend.folder(options.folder()?)?;
    let connection = AcpConnection::open(backend.command(&folder), &backend.name)?;
    let until = moment_after(backend.start_limit);
    let mut opening = AcpSessionOpening { backend, connection, until, sign_in: Vec::new() };
    let can = opening.initialize().await?;
    let servers: Result<Vec<WireServer>, _> =
        backend.servers.iter().map(|server| server.wire(&can.mcp_capabilities)).collect();
    let servers = servers?;
    let (id, offered) = match resumed {
        None => {
            let request = NewSessionRequest::new(folder).mcp_servers(servers);
            let opened: OpenedAcpSession<NewSessionResponse> = opening.ask("session/new", request).await?;
            let id = opened.session.session_id.0.to_string();
            opening.connection.shared.is_session(&id);
            (SessionId::new(id), (opened.session.config_options, opened.models))
        }
        Some(id) => {
            // The id is set before the request is sent, so that updates of other sessions are ignored.
            opening.connection.shared.is_session(id.as_str());
            let options = opening.resume(id, folder, servers, &can).await?;
            (id.clone(), options)
        }
    };
    let mut warnings = Vec::new();
    if options.system.is_some() {
        warnings.push(format!("the system prompt is ignored: `{}` has its own", backend.name));
    }
    let unknown = options.settings.keys().filter(|name| *name != "folder");
    warnings.extend(unknown.map(|setting| {
        format!("the setting `{setting}` is ignored: `{}` supports only the setting `folder`", backend.name)
    }));
    warnings.extend(opening.choose(&id, &options.model, offered).await?);
    let connection = opening.connection;
    Ok(AcpSession {
        connection,
        id,
        name: backend.name.clone(),
        can: can.prompt_capabilities,
        warnings: Mutex::new(warnings),
        grace: backend.stop_limit,
    })
}

impl AcpSessionOpening<'_> {
    async fn answer<A: DeserializeOwned>(
        &self,
        call: &'static str,
        request: impl Serialize,
    ) -> Result<A, AcpRequestFailure> {
        let left = self.until.saturating_duration_since(Instant::now());
        let answer = self.connection.ask(call, request, left).await;
        answer.map_err(|unanswered| match unanswered {
            // The error names the limit for the whole start instead of the time that was left.
            AcpRequestFailure::Over(BackendError::Timeout { call, .. }) => {
                AcpRequestFailure::Over(BackendError::Timeout { call, limit: self.backend.start_limit })
            }
            other => other,
        })
    }

    async fn ask<A: DeserializeOwned>(
        &self,
        call: &'static str,
        request: impl Serialize,
    ) -> Result<A, BackendError> {
        self.answer(call, request).await.map_err(|unanswered| match unanswered {
            AcpRequestFailure::Refused(error) => refused(call, &error, &self.sign_in),
            AcpRequestFailure::Over(error) => error,
        })
    }

    async fn initialize(&mut self) -> Result<AgentCapabilities, BackendError> {
        let client = Implementation::new(self.backend.client.0.clone(), self.backend.client.1.clone());
        let request = InitializeRequest::new(ProtocolVersion::V1).client_info(client);
        let agent: InitializeResponse = self.ask("initialize", request).await?;
        if agent.protocol_version != ProtocolVersion::V1 {
            return Err(BackendError::Unsupported(format!(
                "`{}` speaks version {} of the Agent Client Protocol; only version {} is supported",
                self.backend.program.to_string_lossy(),
                agent.protocol_version,
                ProtocolVersion::V1,
            )));
        }
        self.sign_in = agent.auth_methods;
        self.connection.shared.signs_in(self.sign_in.clone());
        if let Some(way) = &self.backend.sign_in {
            let _: Value = self.ask("authenticate", AuthenticateRequest::new(way.clone())).await?;
        }
        Ok(agent.agent_capabilities)
    }

    /// Resumes an earlier session. `session/resume` is tried first, because it does not repeat the conversation. If the
    /// agent announces this method but the request fails, the session is loaded instead, provided that the agent
    /// announces loading too.
    async fn resume(
        &self,
        id: &SessionId,
        folder: PathBuf,
        servers: Vec<WireServer>,
        can: &AgentCapabilities,
    ) -> Result<OfferedModels, BackendError> {
        let wire = id.as_str().to_owned();
        let refused = |call, unanswered| match unanswered {
            AcpRequestFailure::Refused(error) => not_resumed(call, &error, id, &self.sign_in),
            AcpRequestFailure::Over(error) => error,
        };
        if can.session_capabilities.resume.is_some() {
            let request =
                ResumeSessionRequest::new(wire.clone(), folder.clone()).mcp_servers(servers.clone());
            match self.answer::<OpenedAcpSession<ResumeSessionResponse>>("session/resume", request).await {
                Ok(opened) => return Ok((opened.session.config_options, opened.models)),
                Err(AcpRequestFailure::Refused(error))
                    if can.load_session && error.code != ErrorCode::AuthRequired =>
                {
                    let program = self.backend.program.to_string_lossy();
                    tracing::warn!(%program, error = %error.message, "`session/resume` failed; trying `session/load`");
                }
                Err(unanswered) => return Err(refused("session/resume", unanswered)),
            }
        }
        if !can.load_session {
            return Err(BackendError::NotResumable(format!(
                "`{}` can neither resume nor load a session; start a new conversation, or set `with_lost_session`",
                self.backend.program.to_string_lossy()
            )));
        }
        let request = LoadSessionRequest::new(wire, folder).mcp_servers(servers);
        let opened: OpenedAcpSession<LoadSessionResponse> =
            self.answer("session/load", request).await.map_err(|error| refused("session/load", error))?;
        // The agent repeats the conversation before it responds. Some agents continue the repetition after their
        // response, and the next turn must not contain any of it. The wait uses only half of the remaining time, so
        // that the requests that follow have time even if an agent never falls silent.
        let left = self.until.saturating_duration_since(Instant::now());
        let _ = timeout(left / 2, self.connection.shared.quiet(SILENCE)).await;
        Ok((opened.session.config_options, opened.models))
    }

    /// Selects the model, if the agent offers a choice. Returns a warning if the agent offers no choice, and an error
    /// if the agent offers only other models.
    async fn choose(
        &self,
        id: &SessionId,
        model: &str,
        (options, models): OfferedModels,
    ) -> Result<Option<String>, BackendError> {
        if model.is_empty() || model == "default" {
            return Ok(None);
        }
        let older = older_models(&models);
        let selection = choice(options.as_deref().unwrap_or_default(), model);
        let is_older = selection == AcpModelSelection::None && older.is_some();
        let selection = if is_older { choice(older.as_slice(), model) } else { selection };
        match selection {
            AcpModelSelection::Chosen => Ok(None),
            AcpModelSelection::Choose { value, .. } if is_older => {
                let request = json!({ "sessionId": id.as_str(), "modelId": value });
                let _: Value = self.ask("session/set_model", request).await?;
                Ok(None)
            }
            AcpModelSelection::Choose { option, value } => {
                let request = SetSessionConfigOptionRequest::new(id.as_str().to_owned(), option, value);
                let _: Value = self.ask("session/set_config_option", request).await?;
                Ok(None)
            }
            AcpModelSelection::None => Ok(Some(format!(
                "the model `{model}` is ignored: `{}` offers no choice of models",
                self.backend.name
            ))),
            AcpModelSelection::Unknown(there) => Err(BackendError::Invalid(format!(
                "`{}` has no model `{model}`; choose one of: {there}",
                self.backend.name
            ))),
        }
    }
}

#[async_trait]
impl BackendSession for AcpSession {
    fn id(&self) -> Option<SessionId> {
        Some(self.id.clone())
    }

    async fn prompt(&self, prompt: TurnPrompt) -> Result<EventStream, BackendError> {
        let shared = &self.connection.shared;
        // If the program has ended, it has not received the prompt. The prompt can then be sent to another program.
        if let Some(error) = self.connection.over().await {
            return Err(error);
        }
        let blocks = content::blocks(&prompt, &self.can)?;
        let mut warnings = std::mem::take(&mut *lock(&self.warnings));
        let ignored = content::ignored_options(&prompt.options);
        if !ignored.is_empty() {
            warnings.push(format!(
                "`{}` has no settings for these options, which are ignored: {}",
                self.name,
                ignored.join(", ")
            ));
        }
        let events = shared.begin(warnings)?;
        // The response to this request ends the turn. It is processed in order with the updates.
        let request = PromptRequest::new(self.id.as_str().to_owned(), blocks);
        let turn = Arc::clone(shared);
        // Sending fails only if the connection has ended. The turn then ends too.
        let _ = self.connection.peer.call("session/prompt", request, move |answer| turn.answered(&answer));
        Ok(Box::pin(stream::unfold(events, async |mut events| {
            let (event, _room) = events.recv().await?;
            Some((event, events))
        })))
    }

    async fn cancel(&self) -> Result<(), BackendError> {
        let shared = &self.connection.shared;
        let turn = shared.cancel();
        while turn.is_some_and(|turn| shared.is_in_flight(turn)) {
            let notification = CancelNotification::new(self.id.as_str().to_owned());
            // Sending fails only if the connection has ended. The turn has then ended too.
            let _ = self.connection.peer.notify_now("session/cancel", notification);
            if timeout(AGAIN, shared.idle()).await.is_ok() {
                break;
            }
        }
        shared.has_ended().map_or(Ok(()), Err)
    }

    async fn terminate(&self) {
        self.connection.close(self.grace).await;
    }
}

/// How a model is selected in a session.
#[derive(Debug, PartialEq)]
pub(super) enum AcpModelSelection {
    /// The model is already selected.
    Chosen,
    Choose {
        option: SessionConfigId,
        value: SessionConfigValueId,
    },
    /// The agent offers no choice of models.
    None,
    /// The agent does not offer the model. The text lists the models that it offers.
    Unknown(String),
}

/// Returns the models in the older form as an option, if there are any.
fn older_models(models: &Value) -> Option<SessionConfigOption> {
    let offered = models["availableModels"].as_array()?.iter().filter_map(|model| {
        let id = model["modelId"].as_str()?;
        Some(SessionConfigSelectOption::new(id.to_owned(), model["name"].as_str().unwrap_or(id)))
    });
    let current = models["currentModelId"].as_str().unwrap_or_default().to_owned();
    let offered: Vec<_> = offered.collect();
    (!offered.is_empty()).then(|| SessionConfigOption::select("model", "Model", current, offered))
}

pub(super) fn choice(options: &[SessionConfigOption], model: &str) -> AcpModelSelection {
    let selects = || {
        options.iter().filter_map(|option| match &option.kind {
            SessionConfigKind::Select(select) => Some((option, select)),
            _ => None,
        })
    };
    let models = selects().find(|(option, _)| option.category == Some(SessionConfigOptionCategory::Model));
    // Some agents do not send the category, which is optional.
    let Some((option, select)) = models.or_else(|| selects().find(|(option, _)| &*option.id.0 == "model"))
    else {
        return AcpModelSelection::None;
    };
    let values: Vec<_> = match &select.options {
        SessionConfigSelectOptions::Ungrouped(values) => values.iter().collect(),
        SessionConfigSelectOptions::Grouped(groups) => {
            groups.iter().flat_map(|group| &group.options).collect()
        }
        _ => Vec::new(),
    };
    if &*select.current_value.0 == model {
        return AcpModelSelection::Chosen;
    }
    let Some(value) = values.iter().find(|value| &*value.value.0 == model || value.name == model) else {
        let ids: Vec<&str> = values.iter().map(|value| &*value.value.0).collect();
        return AcpModelSelection::Unknown(ids.join(", "));
    };
    AcpModelSelection::Choose { option: option.id.clone(), value: value.value.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_is_chosen_from_the_offered_models() {
        let options: Vec<SessionConfigOption> = serde_json::from_value(json!([
            { "id": "mode", "name": "Mode", "category": "mode", "type": "select", "currentValue": "small",
              "options": [{ "value": "small", "name": "Small" }] },
            { "id": "llm", "name": "Model", "category": "model", "type": "select", "currentValue": "a",
              "options": [{ "group": "g", "name": "G", "options": [
                  { "value": "a", "name": "A" }, { "value": "b", "name": "Big" }] }] },
        ]))
        .unwrap();
        assert_eq!(choice(&options, "a"), AcpModelSelection::Chosen);
        let big = || AcpModelSelection::Choose { option: "llm".into(), value: "b".into() };
        assert_eq!((choice(&options, "b"), choice(&options, "Big")), (big(), big()));
        assert_eq!(choice(&options, "small"), AcpModelSelection::Unknown("a, b".to_owned()));
        assert_eq!(choice(&options[..1], "a"), AcpModelSelection::None);
    }

    #[test]
    fn model_without_a_category_is_chosen_by_the_id_of_its_option() {
        let option = |id: &str, category: Option<&str>| {
            let mut option = json!({ "id": id, "name": "Model", "type": "select", "currentValue": "a",
                "options": [{ "value": "a", "name": "A" }, { "value": "b", "name": "B" }] });
            if let Some(category) = category {
                option["category"] = category.into();
            }
            serde_json::from_value::<SessionConfigOption>(option).unwrap()
        };
        let chosen = |options: &[SessionConfigOption]| match choice(options, "b") {
            AcpModelSelection::Choose { option, .. } => option.0.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(chosen(&[option("mode", None), option("model", None)]), "model");
        assert_eq!(chosen(&[option("model", None), option("llm", Some("model"))]), "llm");
        assert_eq!(chosen(&[option("mode", None)]), "None");
    }
}
