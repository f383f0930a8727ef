use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::Secret;
use crate::tool::Schema;

/// Settings for a response. If an option is `None`, the service's default applies.
///
/// Each option has three methods: one returns the option, one takes and returns the options (`with_`), and one changes
/// the options in place (`set_`). Options are cheap to clone, because clones share their contents until one of them is
/// changed. Empty options have the size of a pointer.
///
/// If a service does not support a setting, the nearest supported one is sent, and the response's warnings report it.
/// The key and headers are never serialised, and their values are never shown.
///
/// ```
/// use omni_agent::provider::{Effort, Options};
///
/// let mut options = Options::default()
///     .with_max_tokens(2_000)
///     .with_thinking(Effort::Low)
///     .with_stop_sequences(["END"])
///     .with_extra([("seed", 7)])
///     .with_header("X-Tenant", "acme");
/// options.set_temperature(Some(0.2));
/// let hurried = options.overlaid(&Options::default().with_max_tokens(100));
/// assert_eq!(hurried.max_tokens(), Some(100));
/// assert_eq!(hurried.stop_sequences(), options.stop_sequences());
/// ```
///
/// An agent's options apply to all of its requests. The options of a [`Prompt`](crate::run::Prompt) are laid over
/// them for one run:
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let provider = ScriptedProvider::new([Step::text("A whale sings.")]);
/// # let model = provider.model();
/// use omni_agent::{agent::Agent, provider::Options, run::Prompt};
///
/// let options = Options::default().with_max_tokens(2_000).with_temperature(0.2);
/// let agent = Agent::builder().model(model).options(options).start().await?;
/// let creative = Options::default().with_temperature(1.0);
/// agent.ask(Prompt::new("Write a poem.").with_options(creative)).await?;
/// # let sent = provider.last_request().expect("a request").options;
/// assert_eq!((sent.max_tokens(), sent.temperature()), (Some(2_000), Some(1.0)));
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
// The fields are stored behind a pointer. An agent keeps its options for life, and each prompt has options, which are
// nearly always empty. If the fields were stored inline, they would take about 350 bytes in each agent and each prompt,
// and would be moved with them.
#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "Settings of a response. If a setting is absent, the service's default applies. If a service does not \
                       support a setting, the nearest supported one is sent, and the response's warnings report it."
    )
)]
#[serde(transparent)]
pub struct Options(
    #[serde(with = "shared")]
    #[cfg_attr(feature = "schema", schemars(with = "OptionsContents"))]
    Option<Arc<OptionsContents>>,
);

impl Options {
    pub(crate) fn fields(&self) -> &OptionsContents {
        self.0.as_deref().unwrap_or(&OptionsContents::NONE)
    }

    pub(crate) fn fields_mut(&mut self) -> &mut OptionsContents {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl PartialEq for Options {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.fields(), other.fields()) || self.fields() == other.fields()
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fields().fmt(f)
    }
}

/// The serialised form of the fields.
mod shared {
    use super::{Arc, Deserialize, Deserializer, OptionsContents, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(
        fields: &Option<Arc<OptionsContents>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        fields.as_deref().unwrap_or(&OptionsContents::NONE).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Arc<OptionsContents>>, D::Error> {
        let fields = OptionsContents::deserialize(deserializer)?;
        Ok((fields != OptionsContents::NONE).then(|| Arc::new(fields)))
    }
}

macro_rules! options {
    ($(#[$outer:meta])* struct $name:ident {
        $($(#[doc = $doc:literal])+ $(#[serde($serde:meta)])? $field:ident($set:ident) -> $get:ident $type:ty = $with:ident($value:ident: $arg:ty) => $to:expr;)+
    }) => {
        $(#[$outer])*
        pub(crate) struct $name { $($(#[doc = $doc])+ $(#[serde($serde)])? pub(crate) $field: Option<$type>,)+ }

        impl $name {
            /// Options without any setting.
            const NONE: Self = Self { $($field: None,)+ };
        }

        impl Options {
            $(
                options!(@$get $field $type, $($doc)+);

                #[doc = concat!("Returns the same options with [`", stringify!($field), "`](Self::", stringify!($field), ") set.")]
                pub fn $with(mut self, $value: $arg) -> Self {
                    self.fields_mut().$field = Some($to);
                    self
                }

                #[doc = concat!("Sets or clears [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                pub fn $set(&mut self, value: Option<$type>) {
                    self.fields_mut().$field = value;
                }
            )+

            /// Returns these options, where each option that `over` sets is replaced by the option in `over`. Values
            /// are not merged.
            pub fn overlaid(&self, over: &Self) -> Self {
                if over.0.is_none() {
                    return self.clone();
                }
                let (over, under) = (over.fields(), self.fields());
                Self(Some(Arc::new($name { $($field: over.$field.clone().or_else(|| under.$field.clone()),)+ })))
            }

            /// Returns whether no option is set.
            pub fn is_empty(&self) -> bool {
                *self.fields() == $name::NONE
            }
        }
    };
    (@value $field:ident $type:ty, $($doc:literal)+) => {
        $(#[doc = $doc])+
        pub fn $field(&self) -> Option<$type> {
            self.fields().$field
        }
    };
    (@reference $field:ident $type:ty, $($doc:literal)+) => {
        $(#[doc = $doc])+
        pub fn $field(&self) -> Option<&$type> {
            self.fields().$field.as_ref()
        }
    };
}

options! {
/// The fields of [`Options`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(default)]
struct OptionsContents {
    /// The maximum number of generated tokens, including reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens(set_max_tokens) -> value u32 = with_max_tokens(count: u32) => count;
    /// The sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature(set_temperature) -> value f64 = with_temperature(temperature: f64) => temperature;
    /// The share of likely tokens to choose from (nucleus sampling).
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p(set_top_p) -> value f64 = with_top_p(share: f64) => share;
    /// Texts that end the response when the model writes one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_sequences(set_stop_sequences) -> reference Vec<String> =
        with_stop_sequences(texts: impl IntoIterator<Item = impl Into<String>>) => texts.into_iter().map(Into::into).collect();
    /// The amount of reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking(set_thinking) -> value ThinkingMode = with_thinking(mode: impl Into<ThinkingMode>) => mode.into();
    /// The tools that may or must be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice(set_tool_choice) -> reference ToolChoice = with_tool_choice(choice: ToolChoice) => choice;
    /// The time for which the service should cache the prompt for the next request.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache(set_cache) -> value CacheHint = with_cache(hint: CacheHint) => hint;
    /// The schema of the response's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    output(set_output) -> reference OutputSchema = with_output(schema: OutputSchema) => schema;
    /// The maximum number of times that a response is requested again because it does not fit the output schema. The
    /// response and its errors are sent with the next request and are not added to the history. 3 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_retries(set_output_retries) -> value u32 = with_output_retries(count: u32) => count;
    /// The application's labels, sent to services that accept them.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata(set_metadata) -> reference Map<String, Value> =
        with_metadata(labels: impl IntoIterator<Item = (impl Into<String>, impl Into<Value>)>) => members(labels);
    /// The time limit of the whole exchange, including retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout(set_timeout) -> value Duration = with_timeout(limit: Duration) => limit;
    /// The maximum number of repetitions of a request that failed before its first content. 2 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_retries(set_max_retries) -> value u32 = with_max_retries(count: u32) => count;
    /// The treatment of an attachment that the model does not accept.
    #[serde(skip_serializing_if = "Option::is_none")]
    unsupported_attachment(set_unsupported_attachment) -> value UnsupportedAttachment =
        with_unsupported_attachment(fate: UnsupportedAttachment) => fate;
    /// Members that are merged into the request's JSON body, for settings that have no option here. Objects are merged.
    /// The items of `tools` follow the agent's tools, and an item with the name of an agent's tool replaces that tool.
    /// Other values are replaced. Each value that is replaced causes a warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    extra(set_extra) -> reference Map<String, Value> =
        with_extra(body: impl IntoIterator<Item = (impl Into<String>, impl Into<Value>)>) => members(body);
    /// Settings for the session of a [backend](super::custom::Backend), such as its working folder. The backend receives
    /// them in [`SessionOptions::settings`](super::custom::SessionOptions::settings) when its session is started, resumed
    /// or forked, so set them for the agent and not for one prompt. Model services ignore these settings. The settings
    /// are saved with the conversation, so they must not contain secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    backend(set_backend) -> reference Map<String, Value> =
        with_backend(settings: impl IntoIterator<Item = (impl Into<String>, impl Into<Value>)>) => members(settings);
    /// The API key, instead of the registry's key. It is never serialised. An agent sends the key only to the provider
    /// whose model the agent used when the key was set.
    #[serde(skip)]
    api_key(set_api_key) -> reference Secret = with_api_key(key: impl Into<Secret>) => key.into();
    /// Additional HTTP headers. They are never serialised. Their values are secret and are only sent where the key is
    /// sent.
    #[serde(skip)]
    headers(set_headers) -> reference BTreeMap<String, Secret> = with_headers(headers: BTreeMap<String, Secret>) => headers;
}
}

impl Options {
    /// Sets the working folder of a backend's session, which is the setting `folder` of [`backend`](Self::backend).
    /// Other settings are kept.
    pub fn with_folder(mut self, path: impl Into<String>) -> Self {
        self.fields_mut()
            .backend
            .get_or_insert_default()
            .insert("folder".to_owned(), Value::String(path.into()));
        self
    }

    /// Adds an HTTP header. It replaces a header with exactly the same name.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.fields_mut().headers.get_or_insert_default().insert(name.into(), value.into());
        self
    }
}

impl Options {
    /// Returns whether the options contain a key or headers. Both are meant for one service only.
    pub(crate) fn has_secrets(&self) -> bool {
        self.api_key().is_some() || self.headers().is_some()
    }

    /// Returns whether `other` has the same key and headers.
    pub(crate) fn shares_secrets(&self, other: &Self) -> bool {
        self.api_key() == other.api_key() && self.headers() == other.headers()
    }

    /// Returns whether no setting is present except a key and headers.
    pub(crate) fn has_secrets_alone(&self) -> bool {
        self.clone().without_secrets().is_empty()
    }

    /// Removes the key and headers.
    pub(crate) fn without_secrets(mut self) -> Self {
        if self.has_secrets() {
            let fields = self.fields_mut();
            (fields.api_key, fields.headers) = (None, None);
        }
        self
    }
}

fn members(pairs: impl IntoIterator<Item = (impl Into<String>, impl Into<Value>)>) -> Map<String, Value> {
    pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

/// The amount of reasoning before a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ThinkingMode {
    /// No reasoning, if the model allows that.
    Off,
    /// Reasoning at this level.
    Effort(Effort),
    /// Reasoning with up to this many tokens.
    Budget(u32),
}

impl ThinkingMode {
    /// Returns whether any reasoning is requested. A budget of zero tokens requests none.
    pub const fn is_on(self) -> bool {
        !matches!(self, Self::Off | Self::Budget(0))
    }
}

impl From<Effort> for ThinkingMode {
    fn from(effort: Effort) -> Self {
        Self::Effort(effort)
    }
}

/// A level of reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub enum Effort {
    Minimal,
    Low,
    Medium,
    High,
    Max,
}

/// The tools that a model may or must use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolChoice {
    /// Any tools or none, as the model decides.
    Auto,
    /// No tools.
    None,
    /// At least one tool.
    Required,
    /// This tool.
    Tool(String),
}

/// The time for which a service should cache the prompt for the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CacheHint {
    /// A few minutes.
    Short,
    /// An hour or longer.
    Long,
}

/// The treatment of an attachment that the model does not accept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnsupportedAttachment {
    /// The request fails before it is sent.
    #[default]
    Error,
    /// A text that names the attachment is sent instead.
    Placeholder,
}

/// The schema of a response.
///
/// Any schema is possible, for objects and for other values. If a service does not support the schema, the schema is
/// rewritten: rejected keywords are removed, optional members become nullable, a value that is not an object is wrapped
/// in an object, or the response is requested as the input of a tool. These changes are reverted in the response, which
/// is then checked against the original schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OutputSchema {
    /// The schema's name, which some services require: at most 64 letters, digits, `_` and `-`.
    pub name: String,
    /// The JSON Schema.
    pub schema: Schema,
}

impl OutputSchema {
    /// Creates an output schema with a name.
    pub fn new(name: impl Into<String>, schema: Schema) -> Self {
        Self { name: name.into(), schema }
    }

    /// Creates the output schema of a Rust type, with the type's name.
    pub fn of<T: JsonSchema>() -> Self {
        let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        Self::new(T::schema_name().chars().map(allowed).take(64).collect::<String>(), Schema::of::<T>())
    }
}
