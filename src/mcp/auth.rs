//! Logins at HTTP servers with OAuth 2.1 (feature `mcp-auth`).

mod exchange;

use std::{
    error::Error,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use reqwest::Url;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, AuthorizationMetadataResolution,
    AuthorizationRequest, AuthorizationSession, CredentialRefreshGuard, CredentialStore, OAuthClientConfig,
    StoredCredentials,
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tracing::Instrument;

use self::exchange::AuthorizationHttpClient;
use super::{McpError, secret::Secrets};
use crate::{error_chain, sync::lock, text::clip};

type BoxError = Box<dyn Error + Send + Sync>;

/// The time limit of a request to an authorization server, of connecting to it, and of each of the two steps of a
/// login.
const LIMIT: Duration = Duration::from_secs(30);

/// The maximum length of a parameter that is shown or compared.
const LONGEST_PARAMETER: usize = 400;

/// The reason for which the address of another login is refused.
const OTHER_LOGIN: &str = "the address belongs to another login, or to one that was already finished";

/// The tokens of one user at one server. As JSON, they can be stored. They are secrets, so store them encrypted.
#[derive(Clone, Serialize, Deserialize)]
pub struct Tokens {
    #[serde(flatten)]
    credentials: StoredCredentials,
    /// The login that returned the tokens. Older versions of this crate stored tokens without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    login: Option<LoginRecord>,
}

/// The facts of a login that the renewals need. The tokens belong to the authorization server of the login, even if the
/// MCP server names another one later.
#[derive(Clone, Serialize, Deserialize)]
struct LoginRecord {
    /// The URL of the MCP server without user, query and fragment.
    server: String,
    metadata: AuthorizationMetadata,
    /// The resource for which the tokens are valid. `None` leaves it out of the requests for tokens.
    resource: Option<String>,
    /// Whether renewals name the granted permissions.
    #[serde(default)]
    renews_with_scopes: bool,
    /// The secret that the authorization server has given to the application with its registration.
    client_secret: Option<String>,
}

impl LoginRecord {
    fn new(server: &str, found: &AuthorizationMetadata) -> Self {
        let mut metadata = found.clone();
        metadata.additional_fields.retain(|name, _| name == "token_endpoint_auth_methods_supported");
        (metadata.scopes_supported, metadata.jwks_uri) = (None, None);
        let renews_with_scopes = requires_scopes(&metadata.token_endpoint);
        Self { server: server.to_owned(), metadata, resource: None, renews_with_scopes, client_secret: None }
    }

    /// Returns whether tokens of the other login can be renewed with this record. The addresses of the authorization server
    /// may differ.
    fn fits(&self, other: &Self) -> bool {
        self.metadata.issuer == other.metadata.issuer
            && self.resource == other.resource
            && self.renews_with_scopes == other.renews_with_scopes
            && self.client_secret == other.client_secret
    }
}

/// Returns whether the server at this address returns a token for other permissions if a renewal names none.
fn requires_scopes(token_endpoint: &str) -> bool {
    Url::parse(token_endpoint).is_ok_and(|url| url.host_str() == Some("login.microsoftonline.com"))
}

/// The login of a client or of a login that has begun, if it is known.
type SharedLogin = Arc<Mutex<Option<LoginRecord>>>;

crate::debug::impl_debug! {
    /// Shows nothing, because tokens are secrets.
    Tokens {}
}

/// Stores the tokens of one user at one server, for example in a row of a database or in the keychain of the system.
///
/// The client reads the tokens before each request, and saves them when it has renewed them. A server may accept each
/// renewal only once. So if several clients use the same tokens at the same time, `save` and `load` must use the same
/// place, and [`lock`](Self::lock) must keep the clients from renewing at the same time. Clones of an
/// [`McpClient`](super::McpClient) share its connection, which renews one token only once. So they need no lock.
///
/// ```
/// use std::sync::Mutex;
/// use omni_agent::{async_trait, mcp::{TokenStore, Tokens}};
///
/// /// Keeps the tokens until the process ends.
/// #[derive(Default)]
/// struct InMemory(Mutex<Option<Tokens>>);
///
/// #[async_trait]
/// impl TokenStore for InMemory {
///     async fn load(&self) -> Result<Option<Tokens>, Box<dyn std::error::Error + Send + Sync>> {
///         Ok(self.0.lock().unwrap().clone())
///     }
///
///     async fn save(&self, tokens: Tokens) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///         *self.0.lock().unwrap() = Some(tokens);
///         Ok(())
///     }
///
///     async fn clear(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///         *self.0.lock().unwrap() = None;
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait TokenStore: Send + Sync + 'static {
    /// Returns the tokens, or `None` if the user has not logged in.
    ///
    /// # Errors
    ///
    /// Fails if the tokens can't be read. The request of the client then fails with this error's text.
    async fn load(&self) -> Result<Option<Tokens>, BoxError>;

    /// Replaces the tokens.
    ///
    /// # Errors
    ///
    /// Fails if the tokens can't be stored. The login or the request then fails with this error's text.
    async fn save(&self, tokens: Tokens) -> Result<(), BoxError>;

    /// Removes the tokens, because they are no longer valid.
    ///
    /// # Errors
    ///
    /// Fails if the tokens can't be removed.
    async fn clear(&self) -> Result<(), BoxError>;

    /// Waits until no other client renews these tokens, and returns a guard. The client drops the guard when the renewed
    /// tokens are saved. Meanwhile it calls `load` and `save`, which must not wait for the guard.
    ///
    /// By default, the guard excludes nobody. Implement this method if several clients use the same tokens at the same
    /// time: with a mutex for clients of one process, or with a lock of the database for several processes. Otherwise,
    /// two clients may send the same renewal. A server that accepts each renewal once then refuses one of the clients, and
    /// some servers end the login.
    ///
    /// With the guard, the first client renews the tokens. The other clients then load the renewed tokens and use them.
    ///
    /// # Errors
    ///
    /// Fails if the lock can't be used. The request of the client then fails with this error's text.
    async fn lock(&self) -> Result<Box<dyn Send>, BoxError> {
        Ok(Box::new(()))
    }
}

#[async_trait]
impl<T: TokenStore + ?Sized> TokenStore for Arc<T> {
    async fn load(&self) -> Result<Option<Tokens>, BoxError> {
        (**self).load().await
    }

    async fn save(&self, tokens: Tokens) -> Result<(), BoxError> {
        (**self).save(tokens).await
    }

    async fn clear(&self) -> Result<(), BoxError> {
        (**self).clear().await
    }

    async fn lock(&self) -> Result<Box<dyn Send>, BoxError> {
        (**self).lock().await
    }
}

/// The settings of a login, created by [`McpLogin::builder`].
#[must_use = "a login starts with `begin`"]
pub struct McpLoginBuilder {
    /// The URL of the server, which may contain secrets.
    url: String,
    request: AuthorizationRequest,
    assumes_proof_keys: bool,
    omits_resource: bool,
    renews_with_scopes: bool,
}

crate::debug::impl_debug! {
    /// Shows only the server, because the rest of its URL may contain secrets.
    McpLoginBuilder(self) { server: shown(&self.url), .. }
}

/// A login that has begun. The user opens [`url`](Self::url) in a browser. The server then redirects the browser to the
/// application's address. Pass that address, with its query, to [`finish`](Self::finish).
///
/// ```no_run
/// # async fn example(tokens: std::sync::Arc<dyn omni_agent::mcp::TokenStore>, received: String)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use omni_agent::mcp::{McpClient, McpLogin};
///
/// let server = "https://mcp.example.com/mcp";
/// let login = McpLogin::builder(server, "http://127.0.0.1:8123/callback")
///     .client_name("My application")
///     .begin(tokens.clone())
///     .await?;
/// println!("Open {}", login.url());
/// // The application receives the request of the browser at its address.
/// login.finish(&received).await?;
///
/// // Now and later, also after a restart:
/// let client = McpClient::http(server).tokens(tokens).connect().await?;
/// # Ok(())
/// # }
/// ```
///
/// The login uses a proof key (PKCE), which exists only in this value. So the value must live until the browser
/// returns.
///
/// The library for the protocol, whose target is `rmcp`, logs the code of the login at the level DEBUG. The code is valid
/// for a short time, once, and only with the proof key.
pub struct McpLogin {
    server: McpLoginErrorContext,
    session: AuthorizationSession,
}

/// The server of a login, as errors show it.
struct McpLoginErrorContext {
    /// The URL without user, query and fragment.
    shown: String,
    secrets: Secrets,
}

impl McpLoginErrorContext {
    fn failed(&self, reason: String) -> McpError {
        McpError::LoginFailed { server: self.shown.clone(), reason: self.secrets.removed(reason) }
    }

    fn timed_out(&self) -> McpError {
        McpError::TimedOut { server: self.shown.clone(), limit: LIMIT }
    }
}

/// Returns the URL without user, query and fragment.
fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "an invalid URL".to_owned() };
    // These fail only for a URL without a host, which has no user.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

impl McpLogin {
    /// Returns the settings of a login at the server with this URL. The server sends the user's browser to `callback`,
    /// an address of the application.
    pub fn builder(server: impl Into<String>, callback: impl Into<String>) -> McpLoginBuilder {
        let callback = callback.into();
        let host = Url::parse(&callback).ok().and_then(|url| url.host_str().map(str::to_owned));
        let is_local = host.is_none_or(|host| matches!(&*host, "localhost" | "127.0.0.1" | "[::1]"));
        let request = AuthorizationRequest::new(callback)
            .with_initial_scope_selection()
            .with_application_type(if is_local { "native" } else { "web" })
            .with_client_name(env!("CARGO_PKG_NAME"));
        McpLoginBuilder {
            url: server.into(),
            request,
            assumes_proof_keys: false,
            omits_resource: false,
            renews_with_scopes: false,
        }
    }

    /// Returns the address that the user opens in a browser. It begins with `https://`, or with `http://` if the URL of
    /// the MCP server does.
    pub fn url(&self) -> &str {
        self.session.get_authorization_url()
    }

    /// Finishes the login with the address to which the server has sent the browser. The tokens are then in the store.
    ///
    /// # Errors
    ///
    /// Fails with [`McpError::LoginFailed`] if the user or the server has refused, if the address belongs to another
    /// login, or if the tokens can't be stored. If the address belongs to another login, this login can still be
    /// finished with the right address.
    ///
    /// Fails with [`McpError::TimedOut`] if the authorization server does not answer within 30 seconds.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, begin another login.
    pub async fn finish(&self, redirect: &str) -> Result<(), McpError> {
        // Without the state of this login, somebody else may have made the address.
        if parameter(redirect, "state") != parameter(self.url(), "state") {
            return Err(self.server.failed(OTHER_LOGIN.to_owned()));
        }
        if let Some(reason) = refusal(redirect) {
            return Err(self.server.failed(reason));
        }
        match timeout(LIMIT, self.session.handle_callback_url(redirect)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(AuthError::InternalError(text))) if text.contains("state not found") => {
                Err(self.server.failed(OTHER_LOGIN.to_owned()))
            }
            Ok(Err(error)) => Err(self.server.failed(error_chain(&error))),
            Err(_) => Err(self.server.timed_out()),
        }
    }
}

crate::debug::impl_debug! {
    /// Shows only the server, because the address contains a secret.
    McpLogin(self) { server: self.server.shown, .. }
}

/// Returns the first value of a parameter in a URL's query.
fn whole_parameter(url: &str, name: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    url.query_pairs().find_map(|(key, value)| (key == name).then(|| value.into_owned()))
}

/// Returns the address of a login without its resource.
fn without_resource(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return url.to_owned() };
    let kept: Vec<_> = url.query_pairs().into_owned().filter(|(name, _)| name != "resource").collect();
    url.query_pairs_mut().clear().extend_pairs(kept);
    url.into()
}

/// Returns the beginning of the first value of a parameter in a URL's query.
fn parameter(url: &str, name: &str) -> Option<String> {
    whole_parameter(url, name).map(|value| clip(&value, LONGEST_PARAMETER).into_owned())
}

/// Returns the reason why the authorization server refused the login, if the address contains a reason.
fn refusal(redirect: &str) -> Option<String> {
    let error = parameter(redirect, "error")?;
    Some(match parameter(redirect, "error_description") {
        Some(about) => format!("it was refused with `{error}`: {about}"),
        None => format!("it was refused with `{error}`"),
    })
}

/// Returns why a login is not possible with the metadata of an authorization server. The MCP server at `url` chooses
/// this server, and may not be trusted.
fn problem(url: &str, found: &AuthorizationMetadataResolution, assumes_proof_keys: bool) -> Option<String> {
    if !found.source.is_discovered() {
        return Some("the server publishes no metadata for logins".to_owned());
    }
    // Without this field, the server does not support proof keys, and clients must refuse it (specification of
    // 2025-11-25, "Authorization Code Protection").
    let methods = found.metadata.code_challenge_methods_supported.as_deref();
    if !methods.map_or(assumes_proof_keys, |methods| methods.iter().any(|method| method == "S256")) {
        return Some("the authorization server does not support proof keys (PKCE with S256)".to_owned());
    }
    let address = &found.metadata.authorization_endpoint;
    let is_allowed =
        address.starts_with("https://") || address.starts_with("http://") && url.starts_with("http://");
    let shown = clip(address, LONGEST_PARAMETER);
    (!is_allowed).then(|| format!("the address of the login is not an `https` URL: {shown:?}"))
}

impl McpLoginBuilder {
    /// Sets the name of the application that the user sees. The default is the name of this crate.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.request = self.request.with_client_name(name);
        self
    }

    /// Requests these permissions. By default, the permissions that the server names are requested.
    pub fn scopes(mut self, scopes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.request = self.request.with_scopes(scopes);
        self
    }

    /// Uses this client id, which the authorization server has given to the application. By default, the application is
    /// registered with each login.
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.request = self.request.with_preregistered_client(id);
        self
    }

    /// Uses the header `WWW-Authenticate` of a request that the server refused, which
    /// [`McpError::Unauthorized`] contains. The header names the authorization server and the permissions. Without the
    /// header, `begin` sends a request to the server, but not every server answers this request with the header.
    pub fn challenge(mut self, challenge: impl Into<String>) -> Self {
        self.request = self.request.with_challenge(challenge);
        self
    }

    /// Accepts an authorization server whose metadata does not name the supported methods for proof keys (PKCE). The login
    /// sends a proof key with S256 in any case. Use this only for a server that is known to check it, such as Microsoft
    /// Entra or Amazon Cognito. By default, such a server is refused, as the protocol requires.
    pub fn assume_proof_keys(mut self) -> Self {
        self.assumes_proof_keys = true;
        self
    }

    /// Leaves the parameter `resource` out of the login and of the requests for tokens. Some authorization servers, such
    /// as Microsoft Entra, refuse it if the permissions belong to another resource. By default, the parameter is sent, as
    /// the protocol requires.
    pub fn without_resource(mut self) -> Self {
        self.omits_resource = true;
        self
    }

    /// Names the granted permissions in each renewal. Some authorization servers require them, and some refuse them. By
    /// default, only the renewals at `login.microsoftonline.com` name them.
    pub fn renew_with_scopes(mut self) -> Self {
        self.renews_with_scopes = true;
        self
    }

    /// Begins a login: finds the authorization server, and registers the application there if it has no client id. The
    /// login saves the tokens in `store`.
    ///
    /// # Errors
    ///
    /// Fails with [`McpError::LoginFailed`] if the server offers no login, refuses the registration, does not support
    /// proof keys, or names an address for the login that is not an `https` URL. Fails with [`McpError::TimedOut`] if
    /// there is no answer within 30 seconds.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is stored.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime with IO and time enabled.
    pub async fn begin(self, store: impl TokenStore) -> Result<McpLogin, McpError> {
        let Self { url, request, assumes_proof_keys, omits_resource, renews_with_scopes } = self;
        let server =
            McpLoginErrorContext { shown: shown(&url), secrets: Secrets::new(Secrets::in_url(&url)) };
        let begun = async {
            let store = TokenStoreAdapter::new(Arc::new(store), &server.secrets);
            let words = |error: AuthError| error_chain(&error);
            let mut manager = manager(&url, store.clone()).await.map_err(words)?;
            let found = manager.resolve_metadata_from_challenge(request.challenge.as_deref()).await;
            let found = found.map_err(words)?;
            if let Some(problem) = problem(&url, &found, assumes_proof_keys) {
                return Err(problem);
            }
            // The registration adds its secret.
            let mut login = LoginRecord::new(&server.shown, &found.metadata);
            login.renews_with_scopes |= renews_with_scopes;
            *lock(&store.login) = Some(login);
            manager.set_metadata(found.metadata);
            let session = AuthorizationSession::new(manager, request).await;
            let mut session = session.map_err(|(_, error)| words(error))?;
            if omits_resource {
                session.auth_url = without_resource(&session.auth_url);
            } else if let Some(login) = &mut *lock(&store.login) {
                login.resource = whole_parameter(&session.auth_url, "resource");
            }
            Ok(session)
        };
        match timeout(LIMIT, begun).await {
            Ok(Ok(session)) => Ok(McpLogin { server, session }),
            Ok(Err(reason)) => Err(server.failed(reason)),
            Err(_) => Err(server.timed_out()),
        }
    }
}

async fn manager(url: &str, store: TokenStoreAdapter) -> Result<AuthorizationManager, AuthError> {
    let invalid = |error: &dyn fmt::Display| AuthError::InternalError(format!("the URL is invalid: {error}"));
    let server = Url::parse(url).map_err(|error| invalid(&error))?;
    let exchanges = AuthorizationHttpClient::new(&server, Arc::clone(&store.login))
        .await
        .map_err(|error| AuthError::InternalError(error_chain(&error)))?;
    let mut manager = AuthorizationManager::new_with_oauth_http_client(url, Arc::new(exchanges)).await?;
    manager.set_credential_store(store);
    Ok(manager)
}

// The stored tokens, and their renewal.

const ACCESS_TOKEN: &str = "access_token";

fn access_token(credentials: &StoredCredentials) -> Option<String> {
    let tokens = serde_json::to_value(&credentials.token_response).ok()?;
    tokens[ACCESS_TOKEN].as_str().map(str::to_owned)
}

/// Makes the application's store usable for the library that implements the protocol.
#[derive(Clone)]
struct TokenStoreAdapter {
    store: Arc<dyn TokenStore>,
    /// The secrets of the client, to which the tokens are added.
    secrets: Secrets,
    /// The access token that was used last. A renewal replaces this token.
    used: Arc<Mutex<Option<String>>>,
    login: SharedLogin,
}

/// The text of the error with which a renewal ends because the store already has other tokens than those that were used.
const ALREADY_RENEWED: &str = "the tokens were already renewed";

fn is_already_renewed(error: &AuthError) -> bool {
    matches!(error, AuthError::CredentialStoreError(text) if text == ALREADY_RENEWED)
}

/// Returns whether the authorization server would refuse the same renewal again, from rmcp's text for its answer. Many
/// servers use one of these codes for a renewal token that is no longer valid, in place of `invalid_grant` (RFC 6749,
/// section 5.2).
fn is_refused_for_good(reason: &str) -> bool {
    const CODES: [&str; 5] = [
        "invalid_request",
        "invalid_client",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
    ];
    let code = reason.strip_prefix("Server returned error response: ");
    let code = code.map(|answer| answer.split(':').next().unwrap_or(answer).trim());
    code.is_some_and(|code| CODES.contains(&code))
}

impl TokenStoreAdapter {
    fn new(store: Arc<dyn TokenStore>, secrets: &Secrets) -> Self {
        Self { store, secrets: secrets.clone(), used: Arc::default(), login: Arc::default() }
    }

    fn set_used(&self, token: Option<String>) {
        *lock(&self.used) = token;
    }

    /// Adds the tokens to the secrets that texts must not contain.
    fn remember(&self, tokens: &Tokens) {
        let secret = tokens.login.as_ref().and_then(|login| login.client_secret.as_deref());
        let tokens = serde_json::to_value(&tokens.credentials.token_response).unwrap_or_default();
        let values = [ACCESS_TOKEN, "refresh_token", "id_token"].map(|name| tokens[name].as_str());
        self.secrets.add_tokens(values.into_iter().flatten().chain(secret));
    }

    async fn read(&self) -> Result<Option<Tokens>, AuthError> {
        let loaded = self.store.load().await.map_err(Self::failed)?;
        if let Some(tokens) = &loaded {
            self.remember(tokens);
        }
        Ok(loaded)
    }

    #[expect(clippy::needless_pass_by_value, reason = "used with `map_err`")]
    fn failed(error: BoxError) -> AuthError {
        AuthError::CredentialStoreError(error_chain(&*error))
    }
}

#[async_trait]
impl CredentialStore for TokenStoreAdapter {
    async fn load(&self) -> Result<Option<StoredCredentials>, AuthError> {
        let loaded = self.read().await?.map(|tokens| tokens.credentials);
        self.set_used(loaded.as_ref().and_then(access_token));
        Ok(loaded)
    }

    async fn save(&self, credentials: StoredCredentials) -> Result<(), AuthError> {
        let mut login = lock(&self.login).clone();
        if login.is_none() {
            // The tokens keep the record of their login if it was at another URL than that of this client.
            login = self.read().await?.and_then(|tokens| tokens.login);
        }
        let tokens = Tokens { credentials, login };
        self.remember(&tokens);
        self.store.save(tokens).await.map_err(Self::failed)
    }

    /// rmcp calls this if the authorization server is not the one of the tokens. If the login is known, another login has
    /// replaced the tokens in the meantime.
    async fn clear(&self) -> Result<(), AuthError> {
        if lock(&self.login).is_some() {
            return Ok(());
        }
        self.store.clear().await.map_err(Self::failed)
    }

    async fn acquire_refresh_guard(&self) -> Result<Option<CredentialRefreshGuard>, AuthError> {
        let guard = self.store.lock().await.map_err(Self::failed)?;
        let stored = self.read().await?;
        if *lock(&self.used) != stored.as_ref().and_then(|tokens| access_token(&tokens.credentials)) {
            return Err(AuthError::CredentialStoreError(ALREADY_RENEWED.to_owned()));
        }
        // A later login has other settings, which the next connection reads.
        let login = stored.and_then(|tokens| tokens.login);
        if lock(&self.login).as_ref().zip(login.as_ref()).is_some_and(|(own, login)| !own.fits(login)) {
            return Err(AuthError::AuthorizationRequired);
        }
        Ok(Some(CredentialRefreshGuard::new(guard)))
    }
}

/// The stored tokens of a client. Each token is renewed at most once. Clones share the tokens.
#[derive(Clone)]
pub(super) struct StoredTokenRenewal {
    /// Locked while the tokens are read or renewed.
    manager: Arc<tokio::sync::Mutex<AuthorizationManager>>,
    store: TokenStoreAdapter,
}

impl StoredTokenRenewal {
    pub(in crate::mcp) async fn new(
        url: &str,
        store: &Arc<dyn TokenStore>,
        secrets: &Secrets,
    ) -> Result<Self, AuthError> {
        let store = TokenStoreAdapter::new(Arc::clone(store), secrets);
        let mut manager = manager(url, store.clone()).await?;
        // Tokens of another MCP server are used only if its authorization server is the same, as rmcp checks.
        let known = store.read().await?.and_then(|tokens| {
            let login = tokens.login.filter(|login| login.server == shown(url))?;
            Some((tokens.credentials, login))
        });
        if let Some((credentials, login)) = &known {
            manager.set_metadata(login.metadata.clone());
            if login.renews_with_scopes {
                manager.set_refresh_scopes(credentials.granted_scopes.clone());
            }
            *lock(&store.login) = Some(login.clone());
        }
        // Without tokens, the server refuses the first request.
        if manager.initialize_from_store().await?
            && let Some((StoredCredentials { client_id, .. }, login)) = known
            && let Some(secret) = login.client_secret
        {
            manager.configure_client(OAuthClientConfig::new(client_id, url).with_client_secret(secret))?;
        }
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
        let mut manager = self.manager.lock().await;
        let mut has_asked = false;
        loop {
            let again = rejected.clone();
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
                Err(AuthError::TokenRefreshFailed(reason)) if is_refused_for_good(&reason) => {
                    return Ok(None);
                }
                // The next round returns the renewed token.
                Ok(None) => {}
                Err(error) if is_already_renewed(&error) => {}
                Err(AuthError::TokenRefreshFailed(_))
                    if !std::mem::replace(&mut has_asked, true) && self.has_moved(&mut manager).await =>
                {
                    rejected = again;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the metadata of the authorization server again. If the server has another address for tokens now, uses the
    /// new addresses and returns `true`. Another server is never used: the issuer has to be that of the login.
    async fn has_moved(&self, manager: &mut AuthorizationManager) -> bool {
        let Some(mut login) = lock(&self.store.login).clone() else { return false };
        let Ok(found) = manager.resolve_metadata().await else { return false };
        let (known, new) = (&login.metadata, &found.metadata);
        let is_same = found.source.is_discovered() && new.issuer.is_some() && new.issuer == known.issuer;
        if !is_same || new.token_endpoint == known.token_endpoint {
            return false;
        }
        let Ok(Some(Tokens { credentials, .. })) = self.store.read().await else { return false };
        login.metadata = LoginRecord::new(&login.server, new).metadata;
        manager.set_metadata(login.metadata.clone());
        let mut client = OAuthClientConfig::new(credentials.client_id, &login.server);
        if let Some(secret) = &login.client_secret {
            client = client.with_client_secret(secret.clone());
        }
        *lock(&self.store.login) = Some(login);
        manager.configure_client(client).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_name_the_permissions_only_at_the_host_that_requires_them() {
        assert!(requires_scopes("https://login.microsoftonline.com/common/oauth2/v2.0/token"));
        for other in ["https://login.microsoftonline.com.example.com/token", "https://a@example.com/", "none"]
        {
            assert!(!requires_scopes(other), "{other}");
        }
    }
}
