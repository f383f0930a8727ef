//! Sends the stored tokens with each request, and renews each token at most once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::{
    model::ClientJsonRpcMessage,
    transport::{
        auth::{AuthError, AuthorizationManager, CredentialRefreshGuard, CredentialStore, StoredCredentials},
        common::client_side_sse::BoxedSseResponse,
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
            StreamableHttpResponseLimits,
        },
    },
};

use super::{BoxError, TokenStore, Tokens, manager};
use crate::{error_chain, mcp::secret::Secrets, sync::lock};

const ACCESS_TOKEN: &str = "access_token";

fn access_token(credentials: &StoredCredentials) -> Option<String> {
    let tokens = serde_json::to_value(&credentials.token_response).ok()?;
    tokens[ACCESS_TOKEN].as_str().map(str::to_owned)
}

/// Makes the application's store usable for the library that implements the protocol.
#[derive(Clone)]
pub(super) struct StoreAdapter {
    store: Arc<dyn TokenStore>,
    /// The secrets of the client, to which the tokens are added.
    secrets: Secrets,
    /// The access token that was used last. A renewal replaces this token.
    used: Arc<Mutex<Option<String>>>,
}

/// The text of the error with which a renewal ends because the store already has other tokens than those that were used.
const ALREADY_RENEWED: &str = "the tokens were already renewed";

fn is_already_renewed(error: &AuthError) -> bool {
    matches!(error, AuthError::CredentialStoreError(text) if text == ALREADY_RENEWED)
}

impl StoreAdapter {
    pub(super) fn new(store: Arc<dyn TokenStore>, secrets: &Secrets) -> Self {
        Self { store, secrets: secrets.clone(), used: Arc::default() }
    }

    fn set_used(&self, token: Option<String>) {
        *lock(&self.used) = token;
    }

    /// Adds the tokens to the secrets that texts must not contain.
    fn remember(&self, credentials: &StoredCredentials) {
        let tokens = serde_json::to_value(&credentials.token_response).unwrap_or_default();
        let values = [ACCESS_TOKEN, "refresh_token", "id_token"].map(|name| tokens[name].as_str());
        self.secrets.add_tokens(values.into_iter().flatten());
    }

    async fn read(&self) -> Result<Option<StoredCredentials>, AuthError> {
        let loaded = self.store.load().await.map_err(Self::failed)?.map(|tokens| tokens.0);
        if let Some(credentials) = &loaded {
            self.remember(credentials);
        }
        Ok(loaded)
    }

    #[expect(clippy::needless_pass_by_value, reason = "used with `map_err`")]
    fn failed(error: BoxError) -> AuthError {
        AuthError::CredentialStoreError(error_chain(&*error))
    }
}

#[async_trait]
impl CredentialStore for StoreAdapter {
    async fn load(&self) -> Result<Option<StoredCredentials>, AuthError> {
        let loaded = self.read().await?;
        self.set_used(loaded.as_ref().and_then(access_token));
        Ok(loaded)
    }

    async fn save(&self, credentials: StoredCredentials) -> Result<(), AuthError> {
        self.remember(&credentials);
        self.store.save(Tokens(credentials)).await.map_err(Self::failed)
    }

    async fn clear(&self) -> Result<(), AuthError> {
        self.store.clear().await.map_err(Self::failed)
    }

    async fn acquire_refresh_guard(&self) -> Result<Option<CredentialRefreshGuard>, AuthError> {
        let guard = self.store.lock().await.map_err(Self::failed)?;
        let stored = self.read().await?.as_ref().and_then(access_token);
        if *lock(&self.used) != stored {
            return Err(AuthError::CredentialStoreError(ALREADY_RENEWED.to_owned()));
        }
        Ok(Some(CredentialRefreshGuard::new(guard)))
    }
}

/// Returns a client that sends the stored tokens, and renews them if necessary.
pub(in crate::mcp) async fn authorized<C>(
    client: C,
    url: &str,
    store: &Arc<dyn TokenStore>,
    secrets: &Secrets,
) -> Result<Authorized<C>, AuthError> {
    let store = StoreAdapter::new(Arc::clone(store), secrets);
    let mut manager = manager(url, store.clone()).await?;
    // Without tokens, the server refuses the first request.
    manager.initialize_from_store().await?;
    Ok(Authorized { client, manager: Arc::new(tokio::sync::Mutex::new(manager)), store })
}

/// A client that sends the stored tokens. It renews them if they expire, or once if the server rejects them.
///
/// The client of rmcp renews the tokens for each request that was rejected, even if another request has renewed them in
/// the meantime. If the server ends the earlier tokens at each renewal, the first request would then fail.
#[derive(Clone)]
pub(in crate::mcp) struct Authorized<C> {
    client: C,
    /// Locked while the tokens are read or renewed.
    manager: Arc<tokio::sync::Mutex<AuthorizationManager>>,
    store: StoreAdapter,
}

type Headers = HashMap<HeaderName, HeaderValue>;
type Answered<T, C> = Result<T, StreamableHttpError<<C as StreamableHttpClient>::Error>>;

impl<C: StreamableHttpClient> Authorized<C> {
    /// Returns the token for a request. If the server has rejected a token, renews this token first. Returns `None` if
    /// the user has to log in.
    async fn token(&self, rejected: Option<&str>) -> Result<Option<String>, AuthError> {
        let manager = self.manager.lock().await;
        if let Some(rejected) = rejected {
            self.store.set_used(Some(rejected.to_owned()));
            match manager.refresh_token().await {
                Ok(_) => {}
                Err(AuthError::AuthorizationRequired | AuthError::TokenRefreshRejected(_)) => {
                    return Ok(None);
                }
                Err(error) if is_already_renewed(&error) => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            match manager.get_access_token().await {
                Ok(token) => return Ok(Some(token)),
                Err(AuthError::AuthorizationRequired) => return Ok(None),
                Err(error) if is_already_renewed(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn send<T, F>(&self, call: impl Fn(Option<String>) -> F) -> Answered<T, C>
    where
        F: Future<Output = Answered<T, C>>,
    {
        let sent = self.token(None).await?;
        let answer = call(sent.clone()).await;
        let (Some(sent), Err(StreamableHttpError::AuthRequired(_))) = (sent, &answer) else { return answer };
        match self.token(Some(&sent)).await? {
            Some(token) if token != sent => call(Some(token)).await,
            _ => answer,
        }
    }
}

impl<C: StreamableHttpClient + Sync> StreamableHttpClient for Authorized<C> {
    type Error = C::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Answered<StreamableHttpPostResponse, C> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, token, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Answered<StreamableHttpPostResponse, C> {
        self.send(|token| {
            let (uri, message, session) = (Arc::clone(&uri), message.clone(), session.clone());
            self.client.post_message_with_response_limits(
                uri,
                message,
                session,
                token,
                headers.clone(),
                limits,
            )
        })
        .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        _: Option<String>,
        headers: Headers,
    ) -> Answered<(), C> {
        self.send(|token| {
            self.client.delete_session(Arc::clone(&uri), Arc::clone(&session), token, headers.clone())
        })
        .await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        _: Option<String>,
        headers: Headers,
    ) -> Answered<BoxedSseResponse, C> {
        self.send(|token| {
            self.client.get_stream(Arc::clone(&uri), session.clone(), last.clone(), token, headers.clone())
        })
        .await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        _: Option<String>,
        headers: Headers,
        limit: usize,
    ) -> Answered<BoxedSseResponse, C> {
        self.send(|token| {
            let (uri, session, last) = (Arc::clone(&uri), session.clone(), last.clone());
            self.client.get_stream_with_max_sse_event_size(uri, session, last, token, headers.clone(), limit)
        })
        .await
    }
}
