//! The routes of the AI SDK: `useChat` with its default transport.
//!
//! A stream at its lifetime and a conversation that is closed during a run get a failed body, because a body that ends
//! cleanly counts as a complete answer in this protocol. A reader that is too slow gets the rest of the answer from a
//! snapshot.

use std::io;

use axum::{
    Router,
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response, sse::Event as SseEvent},
};
use futures_util::stream;
use serde::Deserialize;

use super::{
    Action, AuthorizedClient, Problem, Web,
    front::{readers::WebRunReader, stop::RunToStop},
    gate::WebRequest,
    requests::decided_by,
    routes::{self, Route, command, file, routes},
    streams::{LoadPermit, StreamLifetime},
    ui_messages::{
        AiSdkPostBody, AiSdkRunToStream, AiSdkStream, AiSdkTranslationSettings, AiSdkVersion, DONE, messages,
        read,
    },
};
use crate::{
    agent::Status,
    run::{Accepted, ErrorKind, PromptState},
    session::{Session, SessionAnswer, SessionSubscription},
    subscription::{End, EventId, Update},
};

/// Returns all routes. A post names its chat in the body, which the router does not read. So the handler of this route
/// checks whether the principal may perform the action.
pub(super) fn all() -> [Route; 6] {
    routes! {
        POST "/chat" Watch post;
        GET "/chat/{chat}/stream" Watch resume;
        GET "/chat/{chat}/messages" Read list;
        POST "/chat/{chat}/stop" Stop stop;
        // Frames contain the addresses of files and of commands. This router does not know the address of the native
        // routes, so it also has routes for files and commands.
        GET "/chat/{chat}/files/{message}/{block}" Read file;
        POST "/chat/{chat}/commands" Read command;
    }
}

pub(super) fn router(web: &Web) -> Router {
    routes::router_of(all(), web)
}

/// The query of all routes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AiSdkQuery {
    /// The major version of the npm package `ai` whose protocol the client uses.
    #[serde(default = "seven")]
    ui: u8,
    /// Whether a stop discards the run.
    #[serde(default)]
    discard: bool,
    /// The id of the prompt or of the answer whose run a stop means.
    #[serde(default)]
    message: Option<String>,
    /// Whether the list of messages has the prompts that wait.
    #[serde(default)]
    staged: bool,
}

const fn seven() -> u8 {
    7
}

fn settings(call: &WebRequest) -> Result<AiSdkTranslationSettings, Problem> {
    let level = match call.query::<AiSdkQuery>()?.ui {
        6 => AiSdkVersion::Six,
        7 => AiSdkVersion::Seven,
        _ => return Err(Problem::invalid_query(&"`ui` must be 6 or 7")),
    };
    let (view, conversation) = (&call.web.0.view, call.client_path("/chat"));
    let files = view.files(format!("{conversation}/files"), usize::MAX);
    Ok(AiSdkTranslationSettings {
        level,
        conversation: Some(conversation),
        files,
        provider_items: view.everything,
    })
}

async fn post(mut call: WebRequest) -> Result<Response, Problem> {
    let permit = call.open_stream()?;
    let post: AiSdkPostBody = call.json(call.web.0.limits.command_body).await?;
    call.enter_or_create(&post.id, Action::Watch, post.has_prompt()).await?;
    let settings = settings(&call)?;
    let (session, updates, snapshot, mut reader) = call.subscribe_reader(|view| post.is_new(view)).await?;
    let (commands, target) = read(&post, &snapshot)?;
    let mut ui = AiSdkStream::begin(settings, &snapshot, target);
    let by = Some(call.client.principal.name());
    let (mut commands, mut decided) = (commands.into_iter(), Vec::new());
    let last = commands.next_back();
    // The decisions of earlier messages must not keep the message from its run, if they are not permitted or come late.
    for command in commands.filter(|command| call.permit_command(command).is_ok()) {
        let own = decided_by(&command);
        match session.perform(command, by).await {
            Ok(_) => decided.extend(own),
            Err(error) if error.kind() == ErrorKind::StaleDecision => {}
            Err(error) => return Err(error.into()),
        }
    }
    ui.decided(last.iter().flat_map(decided_by).chain(decided).collect());
    if let Some(mut command) = last {
        // The server may have begun to stop since the stream was counted.
        call.permit_command(&command)?;
        call.restore(&mut command, &snapshot)?;
        if let Some(reader) = &mut reader {
            reader.start(&mut command, &snapshot);
        }
        let answer = session.perform(command, by).await;
        let answer = answer.inspect_err(|_| reader.iter_mut().for_each(WebRunReader::end))?;
        if let SessionAnswer::Accepted(accepted) = answer {
            ui.accepted(&accepted);
            // The events of a run that has ended can be older than the subscription.
            if let Accepted::Known { state: PromptState::Ended { .. } } = accepted {
                ui.snapshot(&session.snapshot().await?);
            }
        }
    }
    Ok(respond(&call, ui, session, (updates, snapshot.last), (permit, reader)))
}

async fn resume(mut call: WebRequest) -> Result<Response, Problem> {
    let settings = settings(&call)?;
    let permit = call.open_stream()?;
    if !call.has_conversation() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let (session, updates, snapshot) = call.subscribe().await?;
    if snapshot.agent.status != Status::Busy || !snapshot.agent.is_answering() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let ui = AiSdkStream::begin(settings, &snapshot, AiSdkRunToStream::InFlight);
    let reader = call.reader(&session, &snapshot);
    Ok(respond(&call, ui, session, (updates, snapshot.last), (permit, reader)))
}

async fn list(call: WebRequest) -> Result<Response, Problem> {
    let settings = settings(&call)?;
    if !call.has_conversation() {
        return Ok(routes::json(&[(); 0]));
    }
    let snapshot = call.snapshot().await?;
    Ok(routes::json(&messages(&settings, &snapshot, call.query::<AiSdkQuery>()?.staged)))
}

async fn stop(call: WebRequest) -> Result<Response, Problem> {
    let AiSdkQuery { discard, message, .. } = call.query()?;
    // If the run had ended before the user stopped it, the stop counts as success.
    call.stop(message.map(RunToStop::Message), discard).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The state of a response.
struct AiSdkResponseState {
    client: AuthorizedClient,
    ui: AiSdkStream,
    session: Session,
    updates: SessionSubscription,
    /// The last update that was read.
    seen: EventId,
    /// If the run is paused, the event after which the response ends.
    pauses_after: Option<EventId>,
    lifetime: StreamLifetime,
    is_done: bool,
    reader: Option<WebRunReader>,
    /// Counts this stream among the open streams, whose number is limited, until the stream ends.
    _permit: LoadPermit,
}

impl AiSdkResponseState {
    /// Returns the next frame, or `None` at the end. An error makes the body fail, so that the client resumes.
    async fn next(&mut self) -> Option<Result<SseEvent, io::Error>> {
        loop {
            if let Some(frame) = self.ui.next_frame() {
                return Some(SseEvent::default().json_data(frame).map_err(io::Error::other));
            }
            if self.is_done {
                return None;
            }
            if self.ui.is_ended() {
                self.is_done = true;
                self.reader.iter_mut().for_each(WebRunReader::end);
                return Some(Ok(SseEvent::default().data(DONE)));
            }
            if let Err(error) = self.advance().await {
                self.is_done = true;
                self.reader.iter_mut().for_each(WebRunReader::cut);
                return Some(Err(error));
            }
        }
    }

    async fn advance(&mut self) -> io::Result<()> {
        if !self.ui.is_paused() {
            self.pauses_after = None;
        } else if self.pauses_after.is_none() {
            // The events up to now can have further pauses. If the session has ended, the next update shows this.
            self.pauses_after = self.session.snapshot().await.ok().map(|snapshot| snapshot.last);
        }
        if self
            .pauses_after
            .is_some_and(|last| self.seen.life != last.life || self.seen.number >= last.number)
        {
            self.ui.pause();
            return Ok(());
        }
        let update = tokio::select! {
            biased;
            () = &mut self.lifetime => return Err(io::Error::other("the lifetime of the stream is over")),
            update = self.updates.next() => update,
        };
        match &update {
            Some(Update::Event(event)) => self.seen = event.id,
            Some(Update::Resync(snapshot)) => self.seen = snapshot.last,
            _ => {}
        }
        let watches = match &update {
            Some(update) => self.client.still_watches(self.session.id(), update).await,
            None => true,
        };
        match update {
            Some(_) if !watches => self.ui.fail("There is no such conversation."),
            Some(Update::Event(event)) => self.ui.event(&event.event),
            Some(Update::Resync(snapshot) | Update::Closed(End { snapshot: Some(snapshot), .. })) => {
                self.ui.snapshot(&snapshot);
            }
            Some(Update::Closed(_)) | None => return Err(io::Error::other("the conversation was closed")),
        }
        Ok(())
    }
}

fn respond(
    call: &WebRequest,
    ui: AiSdkStream,
    session: Session,
    (updates, seen): (SessionSubscription, EventId),
    (permit, reader): (LoadPermit, Option<WebRunReader>),
) -> Response {
    let cut = reader.as_ref().map(WebRunReader::server_end).unwrap_or_default();
    let reply = AiSdkResponseState {
        client: call.client.clone(),
        ui,
        session,
        updates,
        seen,
        pauses_after: None,
        lifetime: call.web.lifetime(),
        is_done: false,
        reader,
        _permit: permit,
    };
    let frames =
        stream::unfold(reply, |mut reply| async move { reply.next().await.map(|frame| (frame, reply)) });
    let mut response = call.web.respond(frames, cut);
    response.headers_mut().insert("x-vercel-ai-ui-message-stream", HeaderValue::from_static("v1"));
    response
}
