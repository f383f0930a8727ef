//! The routes of the AI SDK: `useChat` with its default transport.

use std::{collections::VecDeque, io, sync::Arc};

use axum::{
    Router,
    http::{HeaderValue, Method, StatusCode, header},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event as SseEvent, KeepAlive},
    },
};
use futures_util::stream;
use serde::Deserialize;

use super::{
    Action, Problem, Web,
    gate::Call,
    requests::{action, check, starts_a_run},
    routes::{self, Route},
    streams::Place,
    ui_messages::{DONE, Follow, Frame, Level, Plan, Post, Refusal, Settings, Translator, messages, read},
};
use crate::{
    agent::{Accepted, AgentError, PromptState, Status},
    session::{Mode, Session, SessionAnswer, SessionError, SessionSnapshot, SessionSubscription},
    store::ConversationId,
    subscription::Update,
};

/// Returns the routes. They are relative to the place where the router is nested.
pub(super) fn all() -> [Route; 6] {
    let route = |method, path, action, handler| Route { method, path, action, handler };
    [
        route(Method::POST, "/chat", Action::Prompt, |call| Box::pin(post(call))),
        route(Method::GET, "/chat/{id}/stream", Action::Watch, |call| Box::pin(resume(call))),
        route(Method::GET, "/chat/{id}/messages", Action::Read, |call| Box::pin(list(call))),
        route(Method::POST, "/chat/{id}/stop", Action::Stop, |call| Box::pin(stop(call))),
        // Frames contain addresses of files and of decisions. The address of the native routes is unknown here.
        route(Method::GET, "/chat/{id}/files/{message}/{block}", Action::Read, |call| {
            Box::pin(routes::file(call))
        }),
        route(Method::POST, "/chat/{id}/decisions", Action::Decide, |call| Box::pin(routes::decide(call))),
    ]
}

pub(super) fn router(web: &Web) -> Router {
    routes::router_of(all(), web)
}

/// The query of all routes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    /// The level of the protocol.
    #[serde(default = "seven")]
    ui: u8,
    /// Whether a stop discards the run.
    #[serde(default)]
    discard: bool,
}

const fn seven() -> u8 {
    7
}

fn settings(call: &Call) -> Result<Settings, Problem> {
    let level = match call.query::<Query>()?.ui {
        6 => Level::Six,
        7 => Level::Seven,
        _ => return Err(Problem::invalid_query(&"`ui` must be 6 or 7")),
    };
    let view = &call.web.0.view;
    Ok(Settings {
        level,
        conversation: Some(format!("{}/chat/{}", call.base, call.id()?)),
        inline_files: view.inline_files,
        provider_items: view.everything,
    })
}

async fn post(mut call: Call) -> Result<Response, Problem> {
    let post: Post = call.json(call.web.0.limits.command_body).await?;
    let id = ConversationId::new(post.id.as_str()).map_err(|error| Problem::invalid_id(&error))?;
    call.enter(id, Action::Prompt).await?;
    let settings = settings(&call)?;
    let place = call.web.0.streams.enter(&call.principal, &call.web.0.limits)?;
    let (session, updates, snapshot) = subscribe(&call).await?;
    let Plan { commands, follow } = read(&post, &snapshot, &settings).map_err(problem)?;
    for command in &commands {
        call.permit(action(command))?;
        check(command, &call.principal)?;
        if starts_a_run(command) && call.web.is_draining() {
            return Err(Problem::draining());
        }
    }
    let mut begun = Translator::begin(settings.clone(), &snapshot, follow.clone());
    for command in commands {
        let answer = session.perform(command, Some(call.principal.name())).await?;
        let ended = match (answer, &follow) {
            (SessionAnswer::Prompt(Accepted::Known { state }), Follow::Prompt(id)) => match state {
                PromptState::Ended { outcome } => Follow::Ended(id.clone(), outcome),
                // The message of the prompt is added later, or the snapshot of the subscription is older than the
                // message.
                PromptState::Staged | PromptState::InFlight => continue,
            },
            _ => continue,
        };
        begun = Translator::begin(settings.clone(), &session.snapshot().await?, ended);
    }
    Ok(respond(&call, begun, session, updates, place))
}

async fn resume(call: Call) -> Result<Response, Problem> {
    let settings = settings(&call)?;
    let place = call.web.0.streams.enter(&call.principal, &call.web.0.limits)?;
    let (session, updates, snapshot) = subscribe(&call).await?;
    if snapshot.agent.status != Status::Busy {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let begun = Translator::begin(settings, &snapshot, Follow::InFlight);
    Ok(respond(&call, begun, session, updates, place))
}

async fn list(call: Call) -> Result<Response, Problem> {
    let settings = settings(&call)?;
    let snapshot = call.on_session(|session| async move { session.snapshot().await }).await?;
    Ok(routes::json(&messages(&settings, &snapshot)))
}

async fn stop(call: Call) -> Result<Response, Problem> {
    let discard = call.query::<Query>()?.discard;
    let stop = |session: Session| async move {
        if discard { session.cancel().await } else { session.interrupt().await }
    };
    match stop(call.session().await?).await {
        // The run has ended before the user has stopped it.
        Ok(()) | Err(SessionError::Agent(AgentError::Idle)) => Ok(StatusCode::NO_CONTENT.into_response()),
        Err(error) => Err(error.into()),
    }
}

fn problem(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::Invalid(reason) => Problem::invalid_body(&reason),
        Refusal::Diverged => {
            let title = "The request builds on a message that is not on the path.";
            Problem::new(StatusCode::CONFLICT, "diverged", title).with_detail("Load the messages again.")
        }
        Refusal::Stale { waiting } => {
            Problem::stale_decision(serde_json::to_value(waiting).unwrap_or_default())
        }
        Refusal::UnknownMessage => Problem::nothing_here("There is no such message."),
    }
}

/// Opens the conversation and subscribes to it. The events follow the snapshot without a gap.
async fn subscribe(call: &Call) -> Result<(Session, SessionSubscription, Arc<SessionSnapshot>), Problem> {
    let session = call.session().await?;
    let updates = session.subscribe(Mode::Controller).await?;
    let snapshot = match updates.snapshot() {
        Some(snapshot) => Arc::clone(snapshot),
        None => Arc::new(session.snapshot().await?),
    };
    Ok((session, updates, snapshot))
}

/// The state of a stream.
struct Body {
    translator: Translator,
    frames: VecDeque<Frame>,
    session: Session,
    updates: SessionSubscription,
    is_done: bool,
    /// Frees the stream's place when the stream ends.
    _place: Place,
}

impl Body {
    /// Returns the next frame, or `None` at the end. An error makes the body fail, so that the client resumes.
    async fn next(&mut self) -> Option<Result<SseEvent, io::Error>> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(SseEvent::default().json_data(frame).map_err(io::Error::other));
            }
            if self.is_done {
                return None;
            }
            if self.translator.is_ended() {
                self.is_done = true;
                return Some(Ok(SseEvent::default().data(DONE)));
            }
            if let Err(error) = self.advance().await {
                self.is_done = true;
                return Some(Err(error));
            }
        }
    }

    async fn advance(&mut self) -> io::Result<()> {
        if self.translator.is_pausing() {
            let last = self.session.snapshot().await.map_err(io::Error::other)?.last;
            self.frames.extend(self.translator.pause_until(last));
            return Ok(());
        }
        match self.updates.next().await {
            Some(Update::Event(event)) => self.frames.extend(self.translator.event(&event)),
            Some(Update::Resync(_)) => return Err(io::Error::other("the reader was too slow")),
            Some(Update::Closed(_)) | None => {
                self.frames.extend(self.translator.close());
                if !self.translator.is_ended() {
                    return Err(io::Error::other("the conversation was closed"));
                }
            }
        }
        Ok(())
    }
}

fn respond(
    call: &Call,
    (translator, frames): (Translator, Vec<Frame>),
    session: Session,
    updates: SessionSubscription,
    place: Place,
) -> Response {
    let frames = frames.into();
    let body = Body { translator, frames, session, updates, is_done: false, _place: place };
    let frames = stream::unfold(body, |mut body| async move { body.next().await.map(|frame| (frame, body)) });
    let keep_alive = KeepAlive::new().interval(call.web.0.limits.keep_alive);
    let mut response = Sse::new(frames).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert("x-vercel-ai-ui-message-stream", HeaderValue::from_static("v1"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
