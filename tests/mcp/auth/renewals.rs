//! Where and with which settings the tokens of a login are renewed.

use std::sync::Arc;

use omni_agent::mcp::{McpClient, McpError, McpLogin};

use super::{Behaviour, CALLBACK, Kept, agree, agree_at, ask, connect, grants, logged_in, start, url};
use crate::support::soon;

/// Without the refused request, the client would find another authorization server.
#[tokio::test]
async fn tokens_of_a_login_with_a_challenge_are_renewed_at_the_server_of_the_login() {
    let server = start(Behaviour { life: Some(0), ..Behaviour::default() }).await;
    let closed = url(&server).replace("/mcp", "/closed");
    let client = || McpClient::http(&closed).version("2025-06-18");
    let error = soon(client().connect()).await.unwrap_err();
    let McpError::Unauthorized { challenge: Some(challenge), .. } = error else { panic!("{error:?}") };
    let store = Arc::<Kept>::default();
    let login = McpLogin::builder(&closed, CALLBACK).challenge(challenge);
    let login = soon(login.begin(Arc::clone(&store))).await.unwrap();
    soon(login.finish(&agree_at(&server, &login, "/other", "/closed"))).await.unwrap();
    let discoveries = {
        let mut server = server.lock().unwrap();
        server.life = Some(3600);
        server.discoveries
    };
    soon(client().tokens(Arc::clone(&store)).connect()).await.unwrap();
    let server = server.lock().unwrap();
    assert_eq!(server.asked, ["/other/token", "/other/token"]);
    // So an outage of the metadata does not matter.
    assert_eq!(server.discoveries, discoveries);
    let saved = serde_json::to_string(&*store.tokens.lock().unwrap()).unwrap();
    assert!(saved.contains("secret-2") && saved.contains("/other/token"), "{saved}");
}

#[tokio::test]
async fn tokens_are_renewed_at_the_new_address_of_their_server() {
    let server = start(Behaviour { life: Some(0), ..Behaviour::default() }).await;
    let store = logged_in(&server).await;
    {
        let mut server = server.lock().unwrap();
        (server.life, server.has_moved) = (Some(3600), true);
    }
    for _ in 0..2 {
        let client = connect(&server, &store).await.unwrap();
        assert!(ask(&client).await.starts_with("You said: Hello"));
    }
    assert_eq!(server.lock().unwrap().asked, ["/token", "/token", "/new/token"]);
}

#[tokio::test]
async fn tokens_are_not_sent_to_the_new_address_of_another_issuer() {
    let server = start(Behaviour { life: Some(0), ..Behaviour::default() }).await;
    let store = logged_in(&server).await;
    {
        let mut server = server.lock().unwrap();
        server.has_moved = true;
        server.issuer = Some(format!("{}/other", server.url));
    }
    let error = connect(&server, &store).await.unwrap_err();
    assert!(matches!(error, McpError::Unreachable { .. }), "{error:?}");
    assert_eq!(server.lock().unwrap().asked, ["/token", "/token"]);
}

#[tokio::test]
async fn renewal_of_a_later_login_with_other_settings_keeps_these_settings() {
    let server = start(Behaviour::default()).await;
    let store = Arc::<Kept>::default();
    let builder = || McpLogin::builder(url(&server), CALLBACK).client_id("client-own");
    let login = soon(builder().begin(Arc::clone(&store))).await.unwrap();
    soon(login.finish(&agree(&server, &login))).await.unwrap();
    let client = connect(&server, &store).await.unwrap();
    let login = soon(builder().renew_with_scopes().begin(Arc::clone(&store))).await.unwrap();
    soon(login.finish(&agree(&server, &login))).await.unwrap();
    assert!(ask(&client).await.starts_with("You said: Hello"), "its token is valid");
    server.lock().unwrap().valid.clear();
    let refused = soon(client.tools()).await.unwrap_err();
    assert!(matches!(refused, McpError::Unauthorized { .. }), "{refused:?}");
    let saved = serde_json::to_string(&*store.tokens.lock().unwrap()).unwrap();
    assert!(saved.contains(r#""renews_with_scopes":true"#), "{saved}");
    assert!(connect(&server, &store).await.is_ok(), "the next connection has the new settings");
}

#[tokio::test]
async fn tokens_of_another_server_are_not_used() {
    let (one, two) = (start(Behaviour::default()).await, start(Behaviour::default()).await);
    let store = logged_in(&one).await;
    two.lock().unwrap().valid.insert("secret-1".to_owned());
    let error = connect(&two, &store).await.unwrap_err();
    assert!(matches!(error, McpError::Unauthorized { .. }), "{error:?}");
}

#[tokio::test]
async fn tokens_that_an_older_version_stored_are_renewed() {
    let server = start(Behaviour::default()).await;
    let store = logged_in(&server).await;
    {
        let mut tokens = store.tokens.lock().unwrap();
        let mut stored = serde_json::to_value(tokens.take()).unwrap();
        stored.as_object_mut().unwrap().remove("login").unwrap();
        *tokens = Some(serde_json::from_value(stored).unwrap());
    }
    let client = connect(&server, &store).await.unwrap();
    server.lock().unwrap().valid.clear();
    assert!(ask(&client).await.starts_with("You said: Hello"));
    assert_eq!(grants(&server), ["authorization_code", "refresh_token"]);
}
