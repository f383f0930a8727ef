//! The stored tokens, and their renewal.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, CredentialRefreshGuard, CredentialStore, StoredCredentials,
};

use super::{BoxError, TokenStore, Tokens, manager};
use tracing::Instrument;

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

/// The stored tokens of a client. Each token is renewed at most once. Clones share the tokens.
#[derive(Clone)]
pub(in crate::mcp) struct TokenSource {
    /// Locked while the tokens are read or renewed.
    manager: Arc<tokio::sync::Mutex<AuthorizationManager>>,
    store: StoreAdapter,
}

impl TokenSource {
    pub(in crate::mcp) async fn new(
        url: &str,
        store: &Arc<dyn TokenStore>,
        secrets: &Secrets,
    ) -> Result<Self, AuthError> {
        let store = StoreAdapter::new(Arc::clone(store), secrets);
        let mut manager = manager(url, store.clone()).await?;
        // Without tokens, the server refuses the first request.
        manager.initialize_from_store().await?;
        Ok(Self { manager: Arc::new(tokio::sync::Mutex::new(manager)), store })
    }

    /// Returns the token for a request. If the token has expired, or if the server has rejected it, renews it first.
    /// Returns `None` if the user has to log in.
    ///
    /// A renewal that has begun always ends, because the authorization server may accept each renewal token only once.
    pub(in crate::mcp) async fn token(&self, rejected: Option<&str>) -> Result<Option<String>, AuthError> {
        let (source, rejected) = (self.clone(), rejected.map(str::to_owned));
        let token = tokio::spawn(async move { source.current(rejected).await }.in_current_span()).await;
        token.unwrap_or_else(|error| Err(AuthError::CredentialStoreError(error.to_string())))
    }

    async fn current(&self, mut rejected: Option<String>) -> Result<Option<String>, AuthError> {
        let manager = self.manager.lock().await;
        loop {
            let token = match rejected.take() {
                None => manager.get_access_token().await.map(Some),
                Some(rejected) => {
                    self.store.set_used(Some(rejected));
                    manager.refresh_token().await.map(|_| None)
                }
            };
            match token {
                Ok(Some(token)) => return Ok(Some(token)),
                Err(AuthError::AuthorizationRequired | AuthError::TokenRefreshRejected(_)) => {
                    return Ok(None);
                }
                // The next round returns the renewed token.
                Ok(None) => {}
                Err(error) if is_already_renewed(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
