//! An agent built on the official Rust implementation. Its process is a second instance of this test binary. The
//! prompts determine what the agent does.

#![allow(clippy::print_stderr, reason = "the backend reads the standard error")]

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use agent_client_protocol::{
    Agent, Client, Error, Lines, Responder, on_receive_notification, on_receive_request,
    v1::{
        ConnectionTo,
        schema::{
            AgentCapabilities, AuthMethod, AuthMethodAgent, AuthenticateRequest, AuthenticateResponse,
            CancelNotification, ContentBlock, ContentChunk, InitializeRequest, InitializeResponse,
            LoadSessionRequest, LoadSessionResponse, McpServer, NewSessionRequest, NewSessionResponse,
            PermissionOption, PermissionOptionKind, Plan, PlanEntry, PlanEntryPriority, PlanEntryStatus,
            PromptRequest, PromptResponse, ReadTextFileRequest, RequestPermissionOutcome,
            RequestPermissionRequest, ResumeSessionRequest, ResumeSessionResponse, SessionCapabilities,
            SessionConfigOption, SessionConfigOptionCategory, SessionConfigOptionValue,
            SessionConfigSelectOption, SessionId, SessionNotification, SessionResumeCapabilities,
            SessionUpdate, SetSessionConfigOptionRequest, SetSessionConfigOptionResponse, StopReason,
            ToolCall, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
        },
    },
};
use futures_util::{sink, stream};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    sync::Notify,
};

/// The environment variable that selects the agent's behaviour. If it is not set, the process runs the tests instead of
/// the agent.
pub const LIKE: &str = "OMNI_ACP_AGENT";
/// The folder in which the agent stores its sessions and its process id.
pub const FOLDER: &str = "OMNI_ACP_FOLDER";

#[tokio::test]
async fn agent_serves() {
    if let Ok(like) = env::var(LIKE) {
        serve(like).await;
    }
}

/// The state of the agent.
struct Brain {
    like: String,
    folder: PathBuf,
    signed_in: Mutex<bool>,
    cancelled: Notify,
    about: Mutex<String>,
}

type Update = Result<(), Error>;

async fn serve(like: String) {
    let folder = PathBuf::from(env::var(FOLDER).unwrap());
    let mut pids = OpenOptions::new().create(true).append(true).open(folder.join("pids")).unwrap();
    // The line is written in a single write, because another agent may write to the file at the same time.
    pids.write_all(format!("{}\n", std::process::id()).as_bytes()).unwrap();
    let brain = Arc::new(Brain {
        like,
        folder,
        signed_in: Mutex::new(false),
        cancelled: Notify::new(),
        about: Mutex::default(),
    });
    let input = BufReader::new(tokio::io::stdin()).lines();
    let incoming =
        stream::unfold(input, async |mut input| Some((input.next_line().await.transpose()?, input)));
    // The agent writes to descriptor 3, because the test harness uses the standard output.
    let output = tokio::fs::File::from_std(File::options().write(true).open("/dev/fd/3").unwrap());
    let outgoing = sink::unfold(output, async |mut output: tokio::fs::File, line: String| {
        output.write_all(format!("{line}\n").as_bytes()).await?;
        output.flush().await?;
        Ok(output)
    });
    let eight = brain.clone();
    let (one, two, three, four, five, six, seven) =
        (brain.clone(), brain.clone(), brain.clone(), brain.clone(), brain.clone(), brain.clone(), brain);
    let served = Agent
        .v1()
        .on_receive_request(
            async move |request: InitializeRequest, responder, _| responder.respond(one.initialize(&request)),
            on_receive_request!(),
        )
        .on_receive_request(
            async move |_: AuthenticateRequest, responder, _| {
                *two.signed_in.lock().unwrap() = true;
                responder.respond(AuthenticateResponse::new())
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: NewSessionRequest, responder: Responder<_, _>, _| {
                responder.respond_with_result(three.create(&request))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: LoadSessionRequest, responder: Responder<_, _>, client| {
                let loaded = four.load(&request.session_id, Some(&client));
                responder.respond_with_result(loaded.map(|()| LoadSessionResponse::new()))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: ResumeSessionRequest, responder: Responder<_, _>, _| {
                if five.is("forgets-to-resume") {
                    return responder.respond_with_error(Error::internal_error());
                }
                let resumed = five.load(&request.session_id, None);
                responder.respond_with_result(resumed.map(|()| ResumeSessionResponse::new()))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: SetSessionConfigOptionRequest, responder: Responder<_, _>, _| {
                if let SessionConfigOptionValue::ValueId { value } = request.value {
                    *eight.about.lock().unwrap() = format!("{} is {}", request.config_id.0, value.0);
                }
                responder.respond(SetSessionConfigOptionResponse::new(models()))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder: Responder<_, _>, client: ConnectionTo<Client>| {
                let brain = Arc::clone(&six);
                let turn = client.clone();
                client
                    .spawn(async move { responder.respond_with_result(brain.prompted(request, turn).await) })
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |_: CancelNotification, _| {
                seven.cancelled.notify_one();
                Ok(())
            },
            on_receive_notification!(),
        )
        .connect_to(Lines::new(Box::pin(outgoing), Box::pin(incoming)))
        .await;
    if let Err(error) = served {
        eprintln!("the agent failed: {error}");
    }
}

fn models() -> Vec<SessionConfigOption> {
    let models =
        vec![SessionConfigSelectOption::new("small", "Small"), SessionConfigSelectOption::new("big", "Big")];
    let option = SessionConfigOption::select("llm", "Model", "small", models);
    vec![option.category(SessionConfigOptionCategory::Model)]
}

impl Brain {
    fn is(&self, what: &str) -> bool {
        self.like.split(' ').any(|word| word == what)
    }

    fn initialize(&self, request: &InitializeRequest) -> InitializeResponse {
        let mut can = AgentCapabilities::new().load_session(self.is("loads"));
        if self.is("resumes") {
            can =
                can.session_capabilities(SessionCapabilities::new().resume(SessionResumeCapabilities::new()));
        }
        let answer = InitializeResponse::new(request.protocol_version).agent_capabilities(can);
        if !self.is("locked") {
            return answer;
        }
        let method = AuthMethodAgent::new("key", "API key").description("from the console".to_owned());
        answer.auth_methods(vec![AuthMethod::Agent(method)])
    }

    fn create(&self, request: &NewSessionRequest) -> Result<NewSessionResponse, Error> {
        if self.is("locked") && !*self.signed_in.lock().unwrap() {
            return Err(Error::auth_required());
        }
        let servers: Vec<String> = request
            .mcp_servers
            .iter()
            .map(|server| match server {
                McpServer::Stdio(server) => format!("{} {:?}", server.name, server.args),
                other => format!("{other:?}"),
            })
            .collect();
        *self.about.lock().unwrap() = format!("{} {}", request.cwd.display(), servers.join(","));
        let id = format!("session-{}", std::process::id());
        fs::write(self.folder.join(&id), "").unwrap();
        let answer = NewSessionResponse::new(id);
        Ok(if self.is("models") { answer.config_options(models()) } else { answer })
    }

    fn load(&self, id: &SessionId, client: Option<&ConnectionTo<Client>>) -> Update {
        let Ok(said) = fs::read_to_string(self.folder.join(&*id.0)) else {
            return Err(agent_client_protocol::v1::schema::Error::resource_not_found(None).into());
        };
        let Some(client) = client else { return Ok(()) };
        for line in said.lines() {
            for update in [SessionUpdate::UserMessageChunk, SessionUpdate::AgentMessageChunk] {
                client.send_notification(SessionNotification::new(
                    id.clone(),
                    update(ContentChunk::new(ContentBlock::from(format!("before: {line}")))),
                ))?;
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_lines, reason = "one branch per prompt")]
    async fn prompted(
        &self,
        request: PromptRequest,
        client: ConnectionTo<Client>,
    ) -> Result<PromptResponse, Error> {
        let id = request.session_id;
        let said: String = request
            .prompt
            .iter()
            .map(|block| match block {
                ContentBlock::Text(text) => text.text.clone(),
                other => serde_json::to_string(other).unwrap(),
            })
            .collect();
        let file = self.folder.join(&*id.0);
        let before = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{before}{said}\n")).unwrap();
        let tell = |update| client.send_notification(SessionNotification::new(id.clone(), update));
        let chunk = |text: &str| ContentChunk::new(ContentBlock::from(text.to_owned()));
        let say = |text: &str| tell(SessionUpdate::AgentMessageChunk(chunk(text)));
        let done = |id: &str, status, text: &str| {
            let fields = ToolCallUpdateFields::new().status(status).content(vec![text.to_owned().into()]);
            tell(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id.to_owned(), fields)))
        };
        let end = |reason| Ok(PromptResponse::new(reason));
        match said.as_str() {
            "Go on for ever" => {
                say("And on")?;
                self.cancelled.notified().await;
                end(StopReason::Cancelled)
            }
            "Ignore the cancel" => {
                say("And on")?;
                std::future::pending().await
            }
            "Look" => {
                let call = ToolCall::new("t1", "List files").kind(ToolKind::Search);
                tell(SessionUpdate::ToolCall(call.raw_input(serde_json::json!({ "in": "." }))))?;
                done("t1", ToolCallStatus::Completed, "a b")?;
                say("Seen.")?;
                end(StopReason::EndTurn)
            }
            "Delete" => {
                let call = ToolCall::new("t1", "Delete it").kind(ToolKind::Delete);
                tell(SessionUpdate::ToolCall(call.clone()))?;
                let options = vec![
                    PermissionOption::new("yes", "Yes", PermissionOptionKind::AllowOnce),
                    PermissionOption::new("always", "Always", PermissionOptionKind::AllowAlways),
                    PermissionOption::new("no", "No", PermissionOptionKind::RejectOnce),
                ];
                let asked = RequestPermissionRequest::new(id.clone(), call.into(), options);
                match client.send_request(asked).block_task().await?.outcome {
                    RequestPermissionOutcome::Selected(chosen) if &*chosen.option_id.0 != "no" => {
                        done("t1", ToolCallStatus::Completed, "gone")?;
                        say(&format!("Deleted: {}.", chosen.option_id.0))?;
                        end(StopReason::EndTurn)
                    }
                    RequestPermissionOutcome::Selected(_) => {
                        done("t1", ToolCallStatus::Failed, "not allowed")?;
                        say("Kept.")?;
                        end(StopReason::EndTurn)
                    }
                    _ => {
                        fs::write(self.folder.join("taken-back"), "").unwrap();
                        end(StopReason::Cancelled)
                    }
                }
            }
            "Write both" => {
                // Some agents use one id for all questions of a kind.
                let ask = |path: &str| {
                    let fields = ToolCallUpdateFields::new().title(format!("Write {path}"));
                    let fields = fields.raw_input(serde_json::json!({ "path": path }));
                    let options = vec![
                        PermissionOption::new("yes", "Yes", PermissionOptionKind::AllowOnce),
                        PermissionOption::new("no", "No", PermissionOptionKind::RejectOnce),
                    ];
                    let call = ToolCallUpdate::new("write-permission", fields);
                    client.send_request(RequestPermissionRequest::new(id.clone(), call, options))
                };
                for (path, asked) in [("a", ask("a")), ("b", ask("b"))] {
                    match asked.block_task().await?.outcome {
                        RequestPermissionOutcome::Selected(chosen) => {
                            say(&format!("{path}: {}. ", chosen.option_id.0))?;
                        }
                        _ => say(&format!("{path}: cancelled. "))?,
                    }
                }
                end(StopReason::EndTurn)
            }
            "Watch" => {
                tell(SessionUpdate::ToolCall(ToolCall::new("t1", "Watch files")))?;
                say("Watching.")?;
                end(StopReason::EndTurn)
            }
            "What happened?" => {
                done("t1", ToolCallStatus::Completed, "changed")?;
                say("A change.")?;
                end(StopReason::EndTurn)
            }
            "Think" => {
                tell(SessionUpdate::AgentThoughtChunk(chunk("Hm.")))?;
                let entry = PlanEntry::new("Look", PlanEntryPriority::High, PlanEntryStatus::InProgress);
                tell(SessionUpdate::Plan(Plan::new(vec![entry])))?;
                say("Thought.")?;
                end(StopReason::EndTurn)
            }
            "Which word?" => {
                let word = before.lines().rev().find_map(|line| line.strip_prefix("The word is "));
                say(word.unwrap_or("none"))?;
                end(StopReason::EndTurn)
            }
            "Where are you?" => {
                say(&self.about.lock().unwrap())?;
                end(StopReason::EndTurn)
            }
            "Read a file" => {
                let refused = client.send_request(ReadTextFileRequest::new(id.clone(), "/etc/hosts"));
                let error = refused.block_task().await.map(drop).unwrap_err();
                say(&format!("{}", i32::from(error.code)))?;
                end(StopReason::EndTurn)
            }
            "Talk out of turn" => {
                let other = SessionUpdate::AgentMessageChunk(chunk("from elsewhere"));
                client.send_notification(SessionNotification::new("another", other))?;
                say("Mine.")?;
                end(StopReason::EndTurn)
            }
            "Run out" => end(StopReason::MaxTokens),
            "Work too much" => end(StopReason::MaxTurnRequests),
            "Refuse" => end(StopReason::Refusal),
            "Fail" => {
                Err(Error::internal_error().data(serde_json::json!({ "details": "the model is down" })))
            }
            "Die" => {
                eprintln!("out of memory");
                std::process::exit(3)
            }
            other => {
                say(&format!("You said: {other}"))?;
                end(StopReason::EndTurn)
            }
        }
    }
}
