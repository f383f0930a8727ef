//! The two hooks of an application: [`Access`] decides about each request on every route, and [`Agents`] builds the
//! agents.

use std::sync::Arc;

use async_trait::async_trait;
use axum::http::{HeaderValue, request::Parts};

use crate::access::{Agents, Permissions, Principal};

/// Decides who sends a request (the principal), and which conversations this principal may use.
///
/// Every route calls [`principal`](Access::principal) first. A route of a conversation then calls
/// [`permits`](Permissions::permits) with the conversation's labels. A conversation that the principal may not read
/// looks like a conversation that does not exist.
///
/// A client decides how long the body of its request takes. So both methods are called before the body is read, and
/// again when it has arrived. `permits` is also called again when a conversation had to be opened for the request.
///
/// ```
/// use axum::http::request::Parts;
/// use omni_agent::access::{Permissions, Principal};
/// use omni_agent::{async_trait, store::Labels, web::{Access, Challenge}};
///
/// /// Users are known by a token.
/// struct Tokens;
///
/// impl Permissions for Tokens {}
///
/// #[async_trait]
/// impl Access for Tokens {
///     async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
///         let token = request.headers.get("authorization").and_then(|value| value.to_str().ok());
///         let user = match token {
///             Some("Bearer ann-17") => "ann",
///             Some("Bearer ben-42") => "ben",
///             _ => return Err(Challenge::bearer()),
///         };
///         Principal::new(user, Labels::new([("user", user)]).map_err(|_| Challenge::bearer())?)
///             .map_err(|_| Challenge::bearer())
///     }
/// }
/// ```
#[async_trait]
pub trait Access: Permissions {
    /// Returns who sends the request.
    ///
    /// # Errors
    ///
    /// Fails if the request is not authenticated. The client gets the status 401 with the challenge.
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge>;
}

/// The value of the header `www-authenticate`, which tells a client how to authenticate.
#[derive(Clone, Debug)]
pub struct Challenge(pub(super) HeaderValue);

impl Challenge {
    /// Returns a challenge for a bearer token.
    pub const fn bearer() -> Self {
        Self(HeaderValue::from_static("Bearer"))
    }

    /// Returns a challenge with this header value.
    pub const fn new(value: HeaderValue) -> Self {
        Self(value)
    }
}

/// The two hooks of the application.
pub(super) struct WebAccessHooks {
    pub(super) access: Arc<dyn Access>,
    pub(super) agents: Arc<dyn Agents>,
}

crate::debug::impl_debug!(WebAccessHooks {});
