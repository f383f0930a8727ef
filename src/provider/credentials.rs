use std::collections::BTreeMap;

use super::{Options, Secret};

/// An API key and HTTP headers for one agent's requests to one provider.
///
/// Give them to [`AgentBuilder::credentials`](crate::agent::AgentBuilder::credentials) each time an agent is built or a
/// conversation is opened. They are not part of the agent's [`Options`]. Therefore, they are never saved and never
/// replace saved options. They apply whenever a model of that provider is in use. A key and headers in the options take
/// precedence over them.
///
/// ```
/// use omni_agent::agent::Agent;
/// use omni_agent::provider::Credentials;
///
/// let credentials = Credentials::new("anthropic").with_api_key("sk-ant-tenant-7").with_header("X-Tenant", "7");
/// let builder = Agent::builder().model("anthropic:claude-sonnet-4-6").credentials(credentials);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    provider: String,
    api_key: Option<Secret>,
    headers: BTreeMap<String, Secret>,
}

impl Credentials {
    /// Creates credentials for the provider with this name, which is the part of a model's name before the colon.
    /// `openai` and `openai_responses` are two providers. If models of both are used, provide credentials for each.
    pub fn new(provider: impl Into<String>) -> Self {
        Self { provider: provider.into(), api_key: None, headers: BTreeMap::new() }
    }

    /// Sets the API key. It takes precedence over the registry's key. An empty key is ignored.
    pub fn with_api_key(mut self, key: impl Into<Secret>) -> Self {
        self.api_key = Some(key.into()).filter(|key| !key.reveal().is_empty());
        self
    }

    /// Sets an HTTP header. It replaces a header with the same name.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Returns the name of the provider that receives the credentials.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Adds the key and the headers that are missing in the options.
    pub(crate) fn complete(&self, options: &mut Options) {
        if let Some(key) = &self.api_key
            && options.api_key().is_none_or(|given| given.reveal().is_empty())
        {
            options.set_api_key(Some(key.clone()));
        }
        for (name, value) in &self.headers {
            let is_given = |headers: &BTreeMap<String, Secret>| {
                headers.keys().any(|given| given.eq_ignore_ascii_case(name))
            };
            if !options.headers().is_some_and(is_given) {
                options.fields_mut().headers.get_or_insert_default().insert(name.clone(), value.clone());
            }
        }
    }
}
