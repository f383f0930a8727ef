//! Limits, and the headers of streams.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    http::{Method, Request, request::Parts},
};
use futures_util::{StreamExt, stream};
use omni_agent::{
    access::{Permissions, Principal},
    async_trait,
    manager::{Manager, Titles},
    store::{ConversationId, Labels, MemoryStore},
    testing::{Gate, Step},
    web::{Access, Challenge, WebLimits},
};
use tokio::time::Instant;

use crate::{
    faulty::FaultyStore,
    support::{App, prompt, request, run_input, submit},
};

/// A step that sends a text, and then nothing until the gate is opened.
fn silent(gate: &Gate) -> Step {
    Step::new().then_text(["One."]).gate(gate).stop()
}

/// Returns a request for a stream of each router.
fn streams(user: &str, id: &str) -> [Request<Body>; 3] {
    [
        request(Method::GET, user, &format!("/agent/conversations/{id}/events"), None),
        request(Method::POST, user, "/api/chat", Some(submit(id, "u1", "Hi"))),
        request(Method::GET, user, &format!("/ag-ui/{id}?protocolVersion=1.0"), None),
    ]
}

#[tokio::test(start_paused = true)]
async fn stream_has_headers_for_proxies_and_a_comment_after_silence() {
    let gate = Gate::new();
    let limits = WebLimits::default().with_keep_alive(Duration::from_secs(3));
    let app = App::with([silent(&gate)], |web| web.limits(limits));
    let id = app.create("ann").await;
    for stream in streams("ann", &id) {
        let path = stream.uri().to_string();
        let response = app.send(stream).await;
        for (name, value) in [
            ("content-type", "text/event-stream"),
            ("cache-control", "no-cache"),
            ("x-accel-buffering", "no"),
        ] {
            assert_eq!(response.headers()[name], value, "{path}");
        }
        let mut body = response.into_body().into_data_stream();
        let mut last = Instant::now();
        loop {
            let bytes = body.next().await.unwrap().unwrap();
            if bytes.starts_with(b":") {
                break;
            }
            last = Instant::now();
        }
        assert_eq!(last.elapsed(), Duration::from_secs(3), "{path}");
    }
    gate.open();
    app.idle(&id).await;
}

#[tokio::test(start_paused = true)]
async fn stream_with_durations_at_the_edge_works() {
    for (lifetime, keep_alive) in [(Duration::MAX, Duration::MAX), (Duration::MAX, Duration::ZERO)] {
        let gate = Gate::new();
        let limits = WebLimits::default().with_stream_lifetime(lifetime).with_keep_alive(keep_alive);
        let app = App::with([silent(&gate)], |web| web.limits(limits));
        let id = app.create("ann").await;
        for stream in streams("ann", &id) {
            let path = stream.uri().to_string();
            let mut body = app.send(stream).await.into_body().into_data_stream();
            assert!(body.next().await.unwrap().is_ok(), "{path}");
            let begun = Instant::now();
            let mut comments = 0;
            while begun.elapsed() < Duration::from_millis(100) && comments < 100 {
                tokio::select! {
                    bytes = body.next() => comments += usize::from(bytes.unwrap().unwrap().starts_with(b":")),
                    () = tokio::time::sleep(Duration::from_millis(100)) => {}
                }
            }
            assert!(comments <= 11, "{path}: {comments} comments in 100 ms");
        }
        gate.open();
        app.idle(&id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn streams_of_all_principals_and_routers_count_against_the_limits() {
    let gate = Gate::new();
    let limits = WebLimits::default().with_streams(2).with_streams_per_principal(2);
    let app = App::with([silent(&gate), silent(&gate)], |web| web.limits(limits));
    let (ann, ben) = (app.create("ann").await, app.create("ben").await);
    let [native, chat, join] = streams("ann", &ann);
    let open = (app.send(native).await, app.send(chat).await);
    gate.reached().await;
    let mut refused: Vec<Request<Body>> = streams("ben", &ben).into();
    refused.push(join);
    refused.push(request(Method::GET, "ann", &format!("/api/chat/{ann}/stream"), None));
    refused.push(request(Method::POST, "ben", "/ag-ui", Some(run_input(&ben, "r1", "Hi"))));
    refused.push(request(Method::GET, "ben", "/agent/events?list=true", None));
    for stream in refused {
        let path = stream.uri().to_string();
        let answer = app.answer(stream).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (429, "too-many-streams"), "{path}");
        assert_eq!(answer.header("retry-after"), Some("5"), "{path}");
    }
    assert_eq!(app.provider.requests().len(), 1, "a refused message starts no run");
    drop(open);
    let mut stream = app.stream("ben", &format!("/agent/conversations/{ben}/events"), None).await;
    assert!(stream.next().await.is_some());
    gate.open();
    app.idle(&ann).await;
}

#[tokio::test(start_paused = true)]
async fn stream_that_is_not_read_ends_and_makes_room_for_another_one() {
    for index in 0..3 {
        for has_begun in [false, true] {
            let gate = Gate::new();
            let limits = WebLimits::default().with_streams(1);
            let app = App::with([silent(&gate)], |web| web.limits(limits));
            let id = app.create("ann").await;
            let mut requests = streams("ann", &id);
            let response = app.send(std::mem::take(&mut requests[index])).await;
            let mut body = response.into_body().into_data_stream();
            if has_begun {
                body.next().await.unwrap().unwrap();
            }
            let other = async || {
                let list = request(Method::GET, "ann", "/agent/events?list=true", None);
                app.send(list).await.status().as_u16()
            };
            tokio::time::sleep(Duration::from_secs(119)).await;
            assert_eq!(other().await, 429, "{index}");
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(other().await, 200, "{index}");
            assert!(body.next().await.unwrap().is_err(), "{index}");
            assert!(body.next().await.is_none(), "{index}");
            gate.open();
            app.idle(&id).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn silent_stream_that_is_read_stays_open() {
    let gate = Gate::new();
    let limits = WebLimits::default().with_keep_alive(Duration::from_hours(1));
    let app = App::with([silent(&gate)], |web| web.limits(limits));
    let id = app.create("ann").await;
    for stream in streams("ann", &id) {
        let path = stream.uri().to_string();
        let mut body = app.send(stream).await.into_body().into_data_stream();
        let all = async { while body.next().await.expect("the stream is open").is_ok() {} };
        // The lifetime of a stream is at least 13 minutes.
        tokio::time::timeout(Duration::from_mins(12), all).await.expect_err(&path);
    }
    gate.open();
    app.idle(&id).await;
}

#[tokio::test(start_paused = true)]
async fn large_event_is_sent_in_parts_to_a_client_that_reads_slowly() {
    const PART: usize = 64 * 1024;
    let app = App::new([Step::text("x".repeat(6 * PART))]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "Hi").await;
    let native = request(Method::GET, "ann", &format!("/agent/conversations/{id}/events"), None);
    let mut body = app.send(native).await.into_body().into_data_stream();
    let mut size = 0;
    while size < 6 * PART {
        let part = body.next().await.unwrap().unwrap();
        assert!(part.len() <= PART, "{} bytes", part.len());
        size += part.len();
        // All of it takes longer than one part may take.
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
}

/// Users of two tenants with the same names.
struct Tenants;

impl Permissions for Tenants {}

#[async_trait]
impl Access for Tenants {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        let tenant = request.headers["x-user"].to_str().unwrap();
        Ok(Principal::new("ann", Labels::new([("tenant", tenant)]).unwrap()).unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn streams_of_users_with_one_name_in_two_tenants_count_separately() {
    let limits = WebLimits::default().with_streams_per_principal(1);
    let manager = Manager::builder(MemoryStore::new()).build();
    let app = App::guarded(manager, Tenants, [], |web| web.limits(limits));
    let _one = app.stream("acme", "/agent/events?list=true", None).await;
    let _other = app.stream("apex", "/agent/events?list=true", None).await;
    let second = app.get("acme", "/agent/events?list=true").await;
    assert_eq!(second.code(), "too-many-streams");
}

/// Returns a prompt whose body consists of this many bytes and then waits forever.
fn unfinished(user: &str, id: &str, bytes: usize) -> Request<Body> {
    let mut request =
        request(Method::POST, user, &format!("/agent/conversations/{id}/commands"), Some(prompt("Hi")));
    let beginning = stream::once(async move { Ok::<_, Infallible>(vec![b' '; bytes]) });
    *request.body_mut() = Body::from_stream(beginning.chain(stream::pending()));
    request
}

#[tokio::test(start_paused = true)]
async fn bodies_in_work_are_limited_in_all_and_for_each_principal() {
    let limits = WebLimits::default().with_command_body(1000).with_body(1000);
    let limits = limits.with_bodies(3000).with_bodies_per_principal(2000);
    let app = App::with([Step::text("Hello!")], |web| web.limits(limits));
    let (ann, ben) = (app.create("ann").await, app.create("ben").await);
    let mut waiting = Vec::new();
    for (user, id) in [("ann", &ann), ("ann", &ann), ("ben", &ben)] {
        let mut sent = Box::pin(app.send(unfinished(user, id, 950)));
        assert!(futures_util::poll!(&mut sent).is_pending());
        waiting.push(sent);
    }
    // Ann has used her share, and Ben finds no room although he has not.
    for (user, id) in [("ann", &ann), ("ben", &ben)] {
        let refused = app.answer(request(
            Method::POST,
            user,
            &format!("/agent/conversations/{id}/commands"),
            Some(prompt(&"x".repeat(200))),
        ));
        let refused = refused.await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (429, "too-many-bodies"), "{user}");
        assert_eq!(refused.header("retry-after"), Some("5"));
    }
    drop(waiting);
    app.ask("ann", &ann, "Hi").await;
}

#[tokio::test(start_paused = true)]
async fn closings_in_many_lists_of_other_users_read_nothing_from_the_store() {
    let store = FaultyStore::default();
    let manager = Manager::builder(store.clone()).titles(Titles::Off).build();
    let app = App::over(manager, [], |web| web.limits(WebLimits::default().with_streams_per_principal(100)));
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(ConversationId::new(app.create("ann").await).unwrap());
    }
    let kept = ConversationId::new(app.create("ben").await).unwrap();
    let mut lists = Vec::new();
    for _ in 0..50 {
        let mut list = app.stream("ben", "/agent/events?list=true", None).await;
        list.next().await.unwrap();
        lists.push(list);
    }
    let read_by_all = async |lists: &mut Vec<crate::support::Frames>, title: &str| {
        app.manager.rename(&kept, Some(title)).await.unwrap();
        for list in lists {
            list.until(|frame| frame.data["update"]["event"]["title"] == title).await;
        }
    };
    for id in &ids {
        app.manager.close(id).await.unwrap();
    }
    let before = store.summaries();
    read_by_all(&mut lists, "closed").await;
    assert_eq!(store.summaries() - before, 0, "the lists have shown no conversation of Ann");
    // A conversation that is not open has no labels in the memory, so they are read once for all lists.
    app.manager.rename(&ids[0], Some("Hidden")).await.unwrap();
    let before = store.summaries();
    read_by_all(&mut lists, "renamed").await;
    assert_eq!(store.summaries() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn drain_ends_a_list_whose_store_hangs_and_the_conversation_in_it_goes_on() {
    let store = FaultyStore::default();
    let manager = Manager::builder(store.clone()).titles(Titles::Off).build();
    let app = App::over(manager, [Step::text("Hello!")], |web| web);
    let (ann, ben) = (app.create("ann").await, app.create("ben").await);
    let ben = ConversationId::new(ben).unwrap();
    app.manager.close(&ben).await.unwrap();
    let mut stream = app.stream("ann", &format!("/agent/events?list=true&watch={ann}"), None).await;
    stream.until(|frame| frame.event == "conversation").await;
    app.manager.rename(&ben, Some("Hidden")).await.unwrap();
    store.hang();
    app.ask("ann", &ann, "Hi").await;
    stream.run().await;
    app.web.drain();
    stream.until(|frame| frame.event == "ending").await;
    assert!(stream.next().await.is_none());
}
