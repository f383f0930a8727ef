//! The routes of AG-UI.

use std::collections::VecDeque;

use axum::{
    Router,
    http::StatusCode,
    response::{IntoResponse, Response, sse::Event},
};
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    AgUiFrame, AgUiInput, AgUiRequestedRun, AgUiRunToStream, AgUiStream, AgUiVersion, messages::MAX_DATA,
    request::prompt_id,
};
use crate::{
    run::{Accepted, ClientTools, Error},
    session::{Session, SessionAnswer, SessionSnapshot, SessionSubscription},
    store::ConversationId,
    web::{
        Action, AuthorizedClient, Problem, Web,
        front::{files::ClientFileForm, intent::RequestIntent, readers::WebRunReader, stop::RunToStop},
        gate::WebRequest,
        requests::{decided_by, prompt_of},
        routes::{Route, file, router_of, routes},
        streams::{LoadPermit, StreamLifetime},
    },
};

/// Returns all routes. A request to run names its thread in the body, which the router does not read. So the handler of
/// this route checks whether the principal may perform the action.
pub(in crate::web) fn all() -> [Route; 4] {
    routes! {
        POST "/" Prompt run;
        GET "/{thread}" Watch join;
        POST "/{thread}/stop" Stop stop;
        GET "/{thread}/files/{message}/{block}" Read file;
    }
}

pub(in crate::web) fn router(web: &Web) -> Router {
    router_of(all(), web)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct AgUiJoinQuery {
    run_id: Option<String>,
    protocol_version: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct AgUiStopQuery {
    discard: bool,
    run_id: Option<String>,
}

async fn run(mut call: WebRequest) -> Result<Response, Problem> {
    let permit = call.open_stream()?;
    let input: AgUiInput = call.json(call.web.0.limits.command_body).await?;
    call.enter_or_create(&input.thread_id, Action::Watch, input.has_prompt()).await?;
    let (web, id) = (call.web.clone(), call.id()?.clone());
    let runs = &web.0.ag_ui_runs;
    let is_new = |view: &SessionSnapshot| runs.find(&id, &input).is_none() && input.is_new(view);
    let (session, updates, view, mut reader, performing) = loop {
        // A repeated request shows the run of the first one, which must have begun before the snapshot is taken.
        let first = runs.find(&id, &input);
        if let Some(performed) = &first {
            performed.cancelled().await;
        }
        let (session, updates, view, reader) = call.subscribe_reader(is_new).await?;
        // The run is remembered first, because a client that loses its connection now repeats the request.
        let performing = runs.insert(&id, &input);
        if performing.is_some() || first.is_some() {
            break (session, updates, view, reader, performing);
        }
    };
    let run = AgUiRequestedRun {
        thread: input.thread_id.clone(),
        id: input.run_id.clone(),
        level: input.level(),
        files: files(&call),
        known: input.known(),
        state: input.state(),
    };
    // A repetition waits until `performing` is dropped, so this request is forgotten first if it is refused.
    let started = match &performing {
        Some(_) => perform(&call, &input, &session, &view, &mut reader).await,
        None => Ok(repeated(&input, &view)),
    };
    match started {
        Ok(start) => {
            let (stream, mut frames) = AgUiStream::begin(run, (*view).clone(), start);
            let stale = input.stale_answers(&view);
            if !stale.is_empty() {
                let value = json!({ "interruptIds": stale });
                // `RUN_STARTED` and `STATE_SNAPSHOT` come first.
                frames.insert(frames.len().min(2), AgUiFrame::Custom { name: "omni.stale-decision", value });
            }
            let (queue, lifetime) = (frames.into(), call.web.lifetime());
            Ok(respond(
                &call,
                AgUiResponseState { id, run: stream, queue, updates, lifetime, reader, permit },
            ))
        }
        Err(problem) => {
            runs.remove(&id, &input);
            let body = problem.to_json();
            let message = body["detail"].as_str().or(body["title"].as_str()).unwrap_or_default();
            let frames = AgUiStream::refused(&run, problem.code(), message);
            let events: Vec<_> = frames.iter().map(event).collect();
            Ok(web.respond(stream::iter(events), CancellationToken::new()))
        }
    }
}

/// Returns the part of the session's activity that the response to a repeated request shows.
fn repeated(input: &AgUiInput, view: &SessionSnapshot) -> AgUiRunToStream {
    let mut staged = view.agent.staged.iter().filter_map(|prompt| prompt.id.clone());
    AgUiRunToStream::staged(
        staged.find(|id| input.messages.last().is_some_and(|last| prompt_id(&last.id) == *id)),
    )
}

/// Performs the commands that the request asks for. Returns the part of the session's activity that the response's
/// stream shows.
async fn perform(
    call: &WebRequest,
    input: &AgUiInput,
    session: &Session,
    view: &SessionSnapshot,
    reader: &mut Option<WebRunReader>,
) -> Result<AgUiRunToStream, Problem> {
    let note_run = |run| call.id().map(|id| call.web.0.ag_ui_runs.started(id, input, run));
    let in_flight = || view.agent.turn.map_or(RunToStop::Ended, RunToStop::Turn);
    let first = input.decided_before(view)?;
    let mut command = match input.intent(view)? {
        RequestIntent::Join(staged) => {
            note_run(staged.clone().map_or_else(in_flight, RunToStop::Prompt))?;
            return Ok(AgUiRunToStream::staged(staged));
        }
        RequestIntent::Ended(_, outcome) => return Ok(AgUiRunToStream::Ended(outcome)),
        RequestIntent::Perform(command) => command,
    };
    first.iter().chain([&*command]).try_for_each(|command| call.permit_command(command))?;
    call.restore(&mut command, view)?;
    let mut tools = ClientTools::default();
    if call.web.0.client_tools {
        tools = ClientTools::new(input.client_tools(&view.agent.state.tools)?);
    }
    let prompt = prompt_of(&mut command).and_then(|prompt| {
        prompt.client_tools = tools;
        prompt.id.clone()
    });
    if let Some(reader) = reader {
        reader.start(&mut command, view);
    }
    let decided = decided_by(&command);
    let by = Some(call.client.principal.name());
    let decided_first = match first {
        Some(first) => session.perform(first, by).await.map(drop),
        None => Ok(()),
    };
    let answer = match decided_first {
        Ok(()) => session.perform(*command, by).await,
        Err(error) => Err(error),
    };
    let answer = answer.inspect_err(|_| reader.iter_mut().for_each(WebRunReader::end))?;
    note_run(match (&answer, &prompt) {
        (SessionAnswer::Accepted(Accepted::Started { turn }), _) => RunToStop::Turn(*turn),
        (SessionAnswer::Accepted(_), Some(prompt)) => RunToStop::Prompt(prompt.clone()),
        _ => in_flight(),
    })?;
    let start = AgUiRunToStream::of(&answer, prompt, &view.agent).after(decided);
    Ok(if input.stale_answers(view).is_empty() { start } else { start.behind() })
}

async fn join(mut call: WebRequest) -> Result<Response, Problem> {
    let query: AgUiJoinQuery = call.query()?;
    let permit = call.open_stream()?;
    let (session, updates, view) = call.subscribe().await?;
    let turn = view.agent.turn.map_or_else(|| "idle".to_owned(), |turn| turn.to_string());
    let run = AgUiRequestedRun {
        files: files(&call),
        thread: call.client_id.clone(),
        id: query.run_id.unwrap_or(turn),
        level: AgUiVersion::of(query.protocol_version.as_deref()),
        ..AgUiRequestedRun::default()
    };
    let (stream, frames) = AgUiStream::begin(run, (*view).clone(), AgUiRunToStream::Join);
    let (queue, lifetime, id) = (frames.into(), call.web.lifetime(), session.id().clone());
    let reader = call.reader(&session, &view);
    Ok(respond(&call, AgUiResponseState { id, run: stream, queue, updates, lifetime, reader, permit }))
}

async fn stop(call: WebRequest) -> Result<Response, Problem> {
    let AgUiStopQuery { discard, run_id } = call.query()?;
    let run = run_id.and_then(|run| call.web.0.ag_ui_runs.named(call.id().ok()?, &run));
    if call.stop(run, discard).await? {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Err(Error::idle().into())
}

fn files(call: &WebRequest) -> ClientFileForm {
    call.web.0.view.files(format!("{}/files", call.client_path("")), MAX_DATA)
}

/// The state of a response.
struct AgUiResponseState {
    id: ConversationId,
    run: AgUiStream,
    queue: VecDeque<AgUiFrame>,
    updates: SessionSubscription,
    lifetime: StreamLifetime,
    reader: Option<WebRunReader>,
    permit: LoadPermit,
}

fn respond(call: &WebRequest, reply: AgUiResponseState) -> Response {
    let client = call.client.clone();
    let cut = reply.reader.as_ref().map(WebRunReader::server_end).unwrap_or_default();
    let events = stream::unfold(Some(reply), move |reply| {
        let client = client.clone();
        async move { reply?.next(&client).await }
    });
    call.web.respond(events, cut)
}

fn event(frame: &AgUiFrame) -> Result<Event, axum::Error> {
    Event::default().json_data(frame)
}

impl AgUiResponseState {
    /// Returns the next event and the rest of the stream. If its lifetime is over, the reader gets an error, which fails
    /// the body: a body that merely ends counts as a success in the client.
    async fn next(mut self, client: &AuthorizedClient) -> Option<(Result<Event, axum::Error>, Option<Self>)> {
        loop {
            if let Some(frame) = self.queue.pop_front() {
                return Some((event(&frame), Some(self)));
            }
            if self.run.is_ended() {
                self.reader.iter_mut().for_each(WebRunReader::end);
                return None;
            }
            let update = tokio::select! {
                biased;
                () = &mut self.lifetime => {
                    self.reader.iter_mut().for_each(WebRunReader::cut);
                    drop(self.permit);
                    return Some((Err(axum::Error::new("the lifetime of the stream is over")), None));
                }
                update = self.updates.next() => update,
            };
            let watches = match &update {
                Some(update) => client.still_watches(&self.id, update).await,
                None => true,
            };
            self.queue.extend(match update {
                Some(update) if watches => self.run.update(&update),
                Some(_) => self.run.fail("not-found", "There is no such conversation."),
                None => self.run.fail("shut-down", "The conversation was closed."),
            });
        }
    }
}
