//! The native routes.

#![expect(clippy::unused_async, reason = "all handlers have the same form")]

use std::collections::HashSet;

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodFilter, on},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::future::{BoxFuture, FutureExt};
use serde::Serialize;

use super::{
    Action, Problem, Web,
    feed::{self, ConversationToWatch, SessionEventPositions},
    front::{
        files::{attachments, stored},
        intent::paused_use,
        media_types::complete,
    },
    gate::{RouteHandler, WebRequest},
    guard::guard,
    pages::visible,
    requests::{
        ApprovalPage, Created, ListPage, ListQuery, ListedApproval, MessagePage, MessagesQuery,
        NewConversation, NewFork, PeriodQuery, RowsPage, SearchQuery, UsageRowsQuery, WatchQuery, action,
        check_count, position, position_text, prompt_of,
    },
};
use crate::{
    manager::{Approval, Listed, TitleOrLabels},
    message::{MessageId, Source, Timestamp, Usage},
    run::Prompt,
    schema,
    session::{Session, SessionAnswer, SessionCommand},
    store::{ConversationId, Page, TurnSummary},
    tree::Node,
};

/// A route: its method, its path, the action that it needs, and its handler. If the path has the id of a conversation,
/// the handler is called only after the action on this conversation was permitted.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) action: Action,
    pub(super) handler: RouteHandler,
}

macro_rules! routes {
    ($($method:ident $path:literal $action:ident $handler:ident;)+) => {
        [$($crate::web::routes::Route {
            method: axum::http::Method::$method,
            path: $path,
            action: $crate::access::Action::$action,
            handler: |call| Box::pin($handler(call)),
        }),+]
    };
}

pub(super) use routes;

/// Returns all routes. The first parameter of a path is the conversation: `{id}` is its own id, `{chat}` and `{thread}`
/// are ids of clients. If a path has no such parameter, the handler itself checks the access to the conversations that
/// it uses.
pub(super) fn all() -> [Route; 17] {
    routes! {
        GET "/conversations" List list;
        POST "/conversations" Create create;
        GET "/conversations/{id}" Read read;
        DELETE "/conversations/{id}" Delete delete;
        POST "/conversations/{id}/commands" Read command;
        POST "/conversations/{id}/forks" Read fork;
        GET "/conversations/{id}/messages" Read messages;
        GET "/conversations/{id}/usage" Read rows;
        GET "/conversations/{id}/files/{message}/{block}" Read file;
        GET "/conversations/{id}/events" Watch watch;
        GET "/events" Watch events;
        GET "/approvals" List approvals;
        GET "/search" List search;
        GET "/usage" List usage;
        GET "/schema/updates" List updates_schema;
        GET "/schema/commands" List commands_schema;
        GET "/openapi.json" List openapi;
    }
}

pub(super) fn router(web: &Web) -> Router {
    router_of(all(), web)
}

/// Returns a router with these routes.
pub(super) fn router_of(table: impl IntoIterator<Item = Route>, web: &Web) -> Router {
    let mut router = Router::new();
    for route in table {
        router = router.route(route.path, on(filter(&route.method), handler(web.clone(), &route)));
    }
    finish(router, web)
}

/// Returns the handler of a route: the access control, then the route's own handler.
fn handler(web: Web, route: &Route) -> impl Fn(Request) -> BoxFuture<'static, Response> + Clone + use<> {
    let (action, handler) = (route.action, route.handler);
    move |request: Request| {
        let web = web.clone();
        let answer = async move {
            let outcome = match WebRequest::admit(web, action, request).await {
                Ok(call) => handler(call).await,
                Err(problem) => Err(problem),
            };
            outcome.unwrap_or_else(Problem::into_response)
        };
        answer.boxed()
    }
}

fn filter(method: &Method) -> MethodFilter {
    MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::GET)
}

/// Adds the answers to unknown paths and methods, and the checks before all routes.
fn finish(router: Router, web: &Web) -> Router {
    let unknown = || async { Problem::nothing_here("There is no such route.") };
    let wrong_method = || async {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method", "The route does not accept this method.")
    };
    router
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(web.clone(), guard))
}

pub(super) fn json(value: &impl Serialize) -> Response {
    document(serde_json::to_string(value).unwrap_or_default())
}

fn document(text: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text.into()).into_response()
}

impl WebRequest {
    fn limit(&self, limit: Option<usize>) -> usize {
        limit.unwrap_or(50).min(self.web.0.limits.page).max(1)
    }

    fn may_list(&self, listed: &Listed) -> bool {
        self.client.may_list(&listed.summary.labels)
    }

    /// Returns the answer to a request that has created this conversation.
    fn created(&self, id: ConversationId) -> Response {
        let location = HeaderValue::try_from(format!("{}/conversations/{id}", self.base));
        let mut response = json(&Created { id });
        *response.status_mut() = StatusCode::CREATED;
        if let Ok(location) = location {
            response.headers_mut().insert(header::LOCATION, location);
        }
        response
    }

    fn check_model(&self, model: Option<&String>) -> Result<(), Problem> {
        match model {
            Some(model) if !self.web.0.models.contains(model) => Err(Problem::unknown_model(model)),
            _ => Ok(()),
        }
    }
}

async fn list(call: WebRequest) -> Result<Response, Problem> {
    let query: ListQuery = call.query()?;
    let limit = call.limit(query.limit);
    let mut page = Page::first(limit);
    if let Some(after) = &query.after {
        page = page.after(position(after)?);
    }
    let read = |page| call.client.list(page);
    let place = |listed: &Listed| (&listed.summary).into();
    let (mut items, last) =
        visible(page, call.limit(None), read, place, |listed| call.may_list(listed)).await?;
    let next = last.as_ref().map(position_text);
    for listed in &mut items {
        call.web.hide(&mut listed.summary);
    }
    Ok(json(&ListPage { items, next }))
}

async fn create(mut call: WebRequest) -> Result<Response, Problem> {
    let new: NewConversation = call.json(call.web.0.limits.body).await?;
    call.check_model(new.model.as_ref())?;
    let opened = call.client.create(None, (new.title, new.model), None).await?;
    Ok(call.created(opened.session.id().clone()))
}

async fn fork(mut call: WebRequest) -> Result<Response, Problem> {
    let NewFork { node, title } = call.json(call.web.0.limits.body).await?;
    let id = call.client.fork(call.id()?, node, title, &call.web.0.models).await?;
    Ok(call.created(id))
}

async fn read(call: WebRequest) -> Result<Response, Problem> {
    let snapshot = call.snapshot().await?;
    let seen = call.lens(call.id()?).snapshot(&snapshot);
    Ok(json(&seen))
}

async fn delete(call: WebRequest) -> Result<Response, Problem> {
    let id = call.id()?;
    let check = async { call.client.permitted(id, &[Action::Delete]).await.map(drop) };
    call.web.0.manager.delete_if(id, check).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn command(mut call: WebRequest) -> Result<Response, Problem> {
    let mut command: SessionCommand = call.json(call.web.0.limits.command_body).await?;
    call.permit_command(&command)?;
    if let Some(Prompt { content, .. }) = prompt_of(&mut command) {
        if content.0.iter_mut().flat_map(attachments).any(|file| matches!(file.source, Source::Url { .. })) {
            // This also checks whether the principal may read the files.
            let snapshot = call.snapshot().await?;
            call.restore(&mut command, &snapshot)?;
        } else {
            content.0.iter_mut().flat_map(attachments).for_each(complete);
        }
    }
    let (manager, id, by) = (&call.web.0.manager, call.id()?, Some(call.client.principal.name()));
    let needed = action(&command);
    let check = || async { call.client.permitted(id, &[needed]).await.map(drop) };
    // A decision, a title and labels need no session, so a conversation that is not open stays so. The answer is sent
    // when they are stored. The access is checked again after waiting for other operations on the conversation.
    match command {
        SessionCommand::Decide { turn, decisions } => {
            let decisions =
                decisions.into_iter().map(|(id, decision)| (paused_use(id, turn), decision)).collect();
            call.check_owner().await?;
            manager.decide_all(id, turn, decisions, by, check).await?;
        }
        SessionCommand::Title { title } => {
            manager.describe(id, TitleOrLabels::Title(title), check).await?;
        }
        SessionCommand::Labels { labels } => {
            manager.describe(id, TitleOrLabels::Labels(labels), check).await?;
        }
        command => {
            if let SessionCommand::Model { model } = &command {
                call.check_model(Some(model))?;
            }
            let perform = |session: Session| {
                let command = command.clone();
                async move { session.perform(command, by).await }
            };
            return Ok(json(&call.on_session(needed, perform).await?));
        }
    }
    Ok(json(&SessionAnswer::Done))
}

async fn approvals(call: WebRequest) -> Result<Response, Problem> {
    let query: ListQuery = call.query()?;
    let limit = call.limit(query.limit);
    let mut page = Page::first(limit);
    if let Some(after) = &query.after {
        page = page.after(position(after)?);
    }
    let (manager, filter) = (&call.web.0.manager, call.client.filter());
    let read = |page| manager.waiting_turns(&filter, page);
    let may_see =
        |turn: &TurnSummary| call.client.may_see(&turn.labels) && call.client.may(Action::Read, &turn.labels);
    // The limit counts turns, and a turn may have several approvals.
    let (turns, last) =
        visible(page, call.limit(None), read, |turn: &TurnSummary| turn.position.clone(), may_see).await?;
    let next = last.as_ref().map(position_text);
    let item = |approval: Approval| ListedApproval {
        pending: call.lens(&approval.id.conversation).pause(&approval.pending),
        conversation: approval.id.conversation,
    };
    let items = turns.into_iter().flat_map(Approval::all_of).map(item).collect();
    Ok(json(&ApprovalPage { items, next }))
}

/// The maximum size of a page of messages, in bytes. The rest of 4 MiB is for the members around the messages.
const MESSAGES_SIZE: usize = (4 << 20) - 64;

async fn messages(call: WebRequest) -> Result<Response, Problem> {
    let MessagesQuery { before, limit } = call.query()?;
    let limit = check_count("limit", limit.unwrap_or(50))?;
    let (snapshot, lens) = (call.snapshot().await?, call.lens(call.id()?));
    let missing = || Problem::nothing_here("There is no such message.");
    let above = |node: &Node| node.parent().and_then(|parent| snapshot.tree.node(parent));
    let mut at = above(snapshot.tree.node(before).ok_or_else(missing)?);
    let (mut messages, mut size) = (Vec::new(), 0);
    while let Some(node) = at.filter(|_| messages.len() < limit) {
        let seen = lens.node(node);
        size += serde_json::to_vec(&seen).map_or(0, |json| json.len() + 1);
        if size > MESSAGES_SIZE && !messages.is_empty() {
            break;
        }
        messages.push(seen);
        at = above(node);
    }
    let next = messages.last().filter(|_| at.is_some()).map(Node::id);
    messages.reverse();
    Ok(json(&MessagePage { messages, next }))
}

async fn rows(call: WebRequest) -> Result<Response, Problem> {
    let UsageRowsQuery { limit, after } = call.query()?;
    let limit = call.limit(limit);
    let id = call.id()?;
    let rows = call.web.0.manager.store().usage(id, &Page::first(limit).from(after)).await?;
    let next = (rows.len() == limit).then_some(after.saturating_add(limit));
    let delegated = if after == 0 { call.client.delegated(id).await? } else { Usage::default() };
    Ok(json(&RowsPage { rows, next, delegated }))
}

async fn usage(call: WebRequest) -> Result<Response, Problem> {
    let PeriodQuery { from, to } = call.query()?;
    // The sums are those of all conversations with these labels, so no single conversation can be checked.
    if !call.client.may(Action::Read, call.client.principal.labels()) {
        return Err(Problem::forbidden("This principal cannot read the usage of its conversations."));
    }
    let period = Timestamp(from.unwrap_or(0))..Timestamp(to.unwrap_or(i64::MAX.unsigned_abs()));
    Ok(json(&call.web.0.manager.used(&call.client.filter(), period).await?))
}

async fn search(call: WebRequest) -> Result<Response, Problem> {
    let SearchQuery { q, limit, offset } = call.query()?;
    let page = Page::first(call.limit(limit)).from(offset);
    let mut found = call.web.0.manager.search(&q, (call.client.list_filter(), page)).await?;
    // A hit in a message contains a part of its text.
    found.hits.retain(|hit| {
        let labels = &hit.conversation.labels;
        call.client.may_list(labels) && (hit.node.is_none() || call.client.may(Action::Read, labels))
    });
    for hit in &mut found.hits {
        call.web.hide(&mut hit.conversation);
    }
    Ok(json(&found))
}

pub(super) async fn file(call: WebRequest) -> Result<Response, Problem> {
    let missing = || Problem::nothing_here("There is no such file.");
    let [(_, message), (_, block)] = &call.path[..] else { return Err(missing()) };
    let snapshot = call.snapshot().await?;
    let attachment = stored(&snapshot, &MessageId::new(message.as_str()), block).ok_or_else(missing)?;
    let Source::Base64 { data } = &attachment.source else { return Err(missing()) };
    let bytes = STANDARD.decode(&**data).map_err(|_| missing())?;
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    let media_type = HeaderValue::try_from(&attachment.media_type);
    let other = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, media_type.unwrap_or(other));
    // The attachment may come from a stranger, so a browser must not run it as a page of this origin.
    let policy = HeaderValue::from_static("sandbox; default-src 'none'; style-src 'unsafe-inline'");
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    let disposition = if attachment.is_image() { "inline" } else { "attachment" };
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(disposition));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=3600"));
    Ok(response)
}

/// Returns the positions after which the client continues a stream. Without the header, no conversation has a position.
fn last_event(call: &WebRequest) -> Result<SessionEventPositions, Problem> {
    match call.parts.headers.get("last-event-id") {
        None => Ok(SessionEventPositions::default()),
        Some(text) => {
            text.to_str().ok().and_then(SessionEventPositions::parse).ok_or_else(Problem::invalid_position)
        }
    }
}

async fn watch(call: WebRequest) -> Result<Response, Problem> {
    let (after, WatchQuery { messages }) = (last_event(&call)?, call.query()?);
    let messages = messages.map(|count| check_count("messages", count)).transpose()?;
    let permit = call.open_stream()?;
    let (id, labels) = call.conversation()?;
    let (_, subscription, _) = feed::subscribe(&call.client, id, labels, after.of(id)).await?;
    let watch = ConversationToWatch { id: id.clone(), subscription: Some(subscription), messages };
    Ok(feed::respond(&call, permit, false, vec![watch], &after))
}

/// The maximum number of conversations of one stream.
const MAX_WATCHES: usize = 8;

async fn events(call: WebRequest) -> Result<Response, Problem> {
    let after = last_event(&call)?;
    let (mut list, mut ids, mut messages) = (false, Vec::new(), None);
    // The parameter `watch` may occur several times, which a struct cannot express, so the query is read as a list.
    for (name, value) in call.query::<Vec<(String, String)>>()? {
        match (name.as_str(), value.as_str()) {
            ("list", "true") => list = true,
            ("list", "false") => list = false,
            ("watch", id) => {
                ids.push(ConversationId::new(id).map_err(|error| Problem::invalid_id(&error))?);
            }
            ("messages", count) => {
                let count =
                    count.parse().map_err(|_| Problem::invalid_query(&"`messages` is not a number"))?;
                messages = Some(check_count("messages", count)?);
            }
            _ => return Err(Problem::invalid_query(&"use `list=true`, `watch=ID` and `messages=COUNT`")),
        }
    }
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    if ids.len() > MAX_WATCHES || ids.is_empty() && !list {
        return Err(Problem::invalid_query(&"use `list=true`, or `watch=ID` one to eight times"));
    }
    let permit = call.open_stream()?;
    let watches =
        ids.into_iter().map(|id| ConversationToWatch { id, subscription: None, messages }).collect();
    Ok(feed::respond(&call, permit, list, watches, &after))
}

async fn updates_schema(_: WebRequest) -> Result<Response, Problem> {
    Ok(document(schema::UPDATES))
}

async fn commands_schema(_: WebRequest) -> Result<Response, Problem> {
    Ok(document(schema::COMMANDS))
}

async fn openapi(call: WebRequest) -> Result<Response, Problem> {
    // The document in the repository contains a fixed base path, but this router may be nested elsewhere, so replace
    // the path.
    let base = serde_json::Value::from(&*call.base);
    Ok(document(schema::OPENAPI.replacen(r#""default": "/agent""#, &format!(r#""default": {base}"#), 1)))
}
