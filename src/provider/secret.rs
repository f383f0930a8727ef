//! Secrets: where they come from, and their removal from texts, in every form in which services echo them.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};

use super::Options;

/// A value that is never shown: an API key, or the value of a header. `Debug` prints a placeholder. The type implements
/// neither `Display` nor `Serialize`.
///
/// ```
/// use omni_agent::provider::Secret;
///
/// let key = Secret::new("sk-123");
/// assert_eq!(format!("{key:?}"), "[secret]");
/// assert_eq!(key.reveal(), "sk-123");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

const PLACEHOLDER: &str = "[secret]";

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self(value.into())
    }

    /// Returns the value itself, for sending it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns `text` with each occurrence of the value replaced by `[secret]`, because services echo keys in their
    /// errors.
    ///
    /// The value is found as it is, with the escapes of JSON (`\/`, `\u002f`, in any depth), percent-encoded, and in
    /// base64. A part of 8 or more consecutive bytes of the value is replaced too. In a value with a space, such as
    /// `Bearer sk-123`, the part after the space is searched for in the same ways.
    ///
    /// Harmless text stays. A value of fewer than 6 bytes is not searched for. A value of fewer than 12 bytes is
    /// replaced only as a whole. A beginning that all keys of a service share, such as `sk-proj-`, is replaced only
    /// together with the following characters.
    ///
    /// ```
    /// use omni_agent::provider::Secret;
    ///
    /// let key = Secret::new("sk-proj-4f/GAtwE7pXo");
    /// assert_eq!(key.scrub(r"no such key: sk-proj-4f\/GAtwE7pXo"), "no such key: [secret]");
    /// assert_eq!(key.scrub("it ends with GAtwE7pXo"), "it ends with [secret]");
    /// assert_eq!(key.scrub("keys begin with sk-proj-"), "keys begin with sk-proj-");
    /// ```
    pub fn scrub(&self, text: &str) -> String {
        Scrubber::new([(self, SecretMatchMode::Parts)]).scrub(text).into_owned()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PLACEHOLDER)
    }
}

impl<T: Into<Arc<str>>> From<T> for Secret {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// The source of a key that was given to a registry or to an endpoint: the key itself, or a function that returns it.
/// The key is never shown and never stored.
#[derive(Clone)]
pub(super) enum KeySource {
    Value(Secret),
    Function(Arc<dyn Fn() -> Option<Secret> + Send + Sync>),
}

impl KeySource {
    pub(super) fn function(key: impl Fn() -> Option<Secret> + Send + Sync + 'static) -> Self {
        Self::Function(Arc::new(key))
    }

    /// Returns the current key. An empty key counts as unset.
    pub(super) fn key(&self) -> Option<Secret> {
        let key = match self {
            Self::Value(key) => Some(key.clone()),
            Self::Function(function) => function(),
        };
        key.filter(|key| !key.reveal().is_empty())
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value(_) => "value",
            Self::Function(_) => "function",
        })
    }
}

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

/// The minimum length in bytes of a value that can be distinguished from ordinary text. Shorter values are not
/// replaced.
const SHORTEST: usize = 6;
/// The minimum length in bytes of a part that is recognised without the rest of its value.
const WINDOW: usize = 8;
/// The minimum length in bytes of a value whose parts are recognised. Half of a shorter value can be an ordinary word.
const LONG: usize = 12;
/// The minimum number of base64 characters that are determined by [`WINDOW`] bytes, regardless of the bytes around
/// them.
const BASE64_WINDOW: usize = 10;

/// Beginnings that all keys of a service share. They are not secret, and services name them in their errors.
const PUBLIC: &[&str] = &[
    "sk-admin-",
    "sk-ant-admin01-",
    "sk-ant-api03-",
    "sk-ant-oat01-",
    "sk-or-v1-",
    "sk-proj-",
    "sk-svcacct-",
];

/// The part of a value that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecretMatchMode {
    /// Any eight consecutive bytes. This is for credentials.
    Parts,
    /// Only the whole value. This is for headers that contain words of a language or a URL.
    Whole,
}

/// Replaces secrets in texts.
#[derive(Default)]
pub(crate) struct Scrubber {
    plain: SecretPatterns,
    base64: SecretPatterns,
}

/// The patterns to search for, in the form of a [`SecretSearchText`] text.
#[derive(Default)]
struct SecretPatterns {
    whole: Vec<Vec<u8>>,
    /// The parts of secrets that have `length` bytes, as numbers, sorted.
    windows: Vec<u128>,
    length: usize,
    /// The public beginnings of keys. An occurrence that is only a part of such a beginning is not replaced.
    public: Vec<Vec<u8>>,
}

impl Scrubber {
    pub(crate) fn new<'s>(secrets: impl IntoIterator<Item = (&'s Secret, SecretMatchMode)>) -> Self {
        let mut scrubber = Self::default();
        for (secret, extent) in secrets {
            let value = secret.reveal();
            scrubber.add(value, SecretMatchMode::Whole);
            // The value may consist of a scheme and credentials. Only the credentials are also searched for alone,
            // because the scheme alone is an ordinary word.
            let credentials = value.split_once(' ').map_or(value, |(_, credentials)| credentials.trim());
            scrubber.add(credentials, extent);
        }
        scrubber.plain.finish();
        scrubber.base64.finish();
        scrubber
    }

    fn add(&mut self, value: &str, extent: SecretMatchMode) {
        if value.len() < SHORTEST {
            return;
        }
        let public = PUBLIC.iter().find(|public| value.starts_with(**public)).map_or("", |public| *public);
        let canonical = SecretSearchText::of(value).bytes;
        let forms = base64(value.as_bytes());
        if extent == SecretMatchMode::Parts && value.len() >= LONG {
            self.plain.add_windows(&canonical, WINDOW);
            self.plain.public.push(public.as_bytes().to_vec());
            for form in &forms {
                self.base64.add_windows(form, BASE64_WINDOW);
            }
            self.base64.public.extend(base64(public.as_bytes()));
        }
        self.base64.whole.extend(forms.into_iter().filter(|form| form.len() >= WINDOW));
        self.plain.whole.push(canonical);
    }

    /// Returns the text with every occurrence of a secret replaced.
    pub(crate) fn scrub<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut canonical = SecretSearchText::of(text);
        let mut found = self.plain.find(&canonical.bytes);
        // The URL-safe base64 alphabet differs from the standard one in two characters, which are converted.
        for byte in &mut canonical.bytes {
            *byte = match *byte {
                b'-' => b'+',
                b'_' => b'/',
                other => other,
            };
        }
        found.extend(self.base64.find(&canonical.bytes));
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut scrubbed = String::with_capacity(text.len());
        let mut done = 0;
        for (start, end) in merged(found) {
            let start = text.floor_char_boundary(canonical.starts[start]).max(done);
            let end = text.ceil_char_boundary(canonical.starts[end]);
            scrubbed.push_str(&text[done..start]);
            scrubbed.push_str(PLACEHOLDER);
            done = end.max(start);
        }
        scrubbed.push_str(&text[done..]);
        Cow::Owned(scrubbed)
    }

    /// Returns whether the text of the error or of one of its causes contains a secret.
    #[cfg(feature = "http")]
    pub(crate) fn shows_in(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        let shows = |text: &str| matches!(self.scrub(text), Cow::Owned(_));
        shows(&error.to_string())
            || shows(&format!("{error:?} {error:#?}"))
            || error.source().is_some_and(|source| self.shows_in(source))
    }
}

impl SecretPatterns {
    fn add_windows(&mut self, value: &[u8], length: usize) {
        self.length = length;
        self.windows.extend(value.windows(length).map(number));
    }

    fn finish(&mut self) {
        self.windows.sort_unstable();
        self.windows.dedup();
    }

    /// Returns the ranges of `text` in which a pattern occurs, in order.
    fn find(&self, text: &[u8]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for pattern in &self.whole {
            let places = text.windows(pattern.len()).enumerate().filter(|(_, window)| window == pattern);
            found.extend(places.map(|(at, window)| (at, at + window.len())));
        }
        if !self.windows.is_empty() {
            let mask = u128::MAX >> (128 - 8 * self.length);
            let mut last = 0;
            for (at, byte) in text.iter().enumerate() {
                last = (last << 8 | u128::from(*byte)) & mask;
                if at + 1 >= self.length && self.windows.binary_search(&last).is_ok() {
                    found.push((at + 1 - self.length, at + 1));
                }
            }
        }
        let mut found = merged(found);
        found.retain(|(start, end)| !self.is_public(&text[*start..*end]));
        found
    }

    fn is_public(&self, part: &[u8]) -> bool {
        self.public.iter().any(|public| public.windows(part.len()).any(|window| window == part))
    }
}

/// Returns up to 16 bytes as one number.
fn number(window: &[u8]) -> u128 {
    window.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// Joins ranges that overlap.
fn merged(mut ranges: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    ranges.sort_unstable();
    let mut merged: Vec<(usize, usize)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start < last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Returns the base64 characters that the value determines, in lower case, for each of its three possible alignments.
fn base64(value: &[u8]) -> [Vec<u8>; 3] {
    [0, 1, 2].map(|before: usize| {
        let mut bytes = vec![0; before];
        bytes.extend_from_slice(value);
        let text = STANDARD_NO_PAD.encode(&bytes);
        let first = (before * 8).div_ceil(6);
        let last = bytes.len() * 8 / 6;
        text.as_bytes().get(first..last).unwrap_or_default().to_ascii_lowercase()
    })
}

/// A text in lower case and without escapes, and the position of each byte in the original text.
struct SecretSearchText {
    bytes: Vec<u8>,
    /// The position of each byte, and the end of the text.
    starts: Vec<usize>,
}

impl SecretSearchText {
    /// Undoes escapes of JSON, however often they were applied, and percent-encoding. Converts letters to lower case,
    /// because services may echo a value in another case.
    fn of(text: &str) -> Self {
        let raw = text.as_bytes();
        let mut canonical =
            Self { bytes: Vec::with_capacity(raw.len()), starts: Vec::with_capacity(raw.len() + 1) };
        let mut at = 0;
        while at < raw.len() {
            let start = at;
            // If JSON text is embedded in JSON, each of its backslashes is escaped as `\\` or `\u005c`, once per level
            // of embedding.
            while let Some(after) = backslash(raw, at, at > start) {
                at = after;
            }
            let escaped = at > start;
            let byte = raw.get(at).copied();
            if escaped
                && byte == Some(b'u')
                && let Some(code) = hex(raw, at + 1, 4)
            {
                at += 5;
                let c = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    canonical.push(byte, start);
                }
            } else if byte == Some(b'%')
                && let Some((byte, after)) = percent(raw, at)
            {
                at = after;
                canonical.push(byte, start);
            } else if let Some(byte) = byte {
                at += 1;
                canonical.push(byte, start);
            }
        }
        canonical.starts.push(raw.len());
        canonical
    }

    fn push(&mut self, byte: u8, start: usize) {
        self.bytes.push(byte.to_ascii_lowercase());
        self.starts.push(start);
    }
}

/// Returns the position after the backslash at `at`, if there is one. If `escaped` is set, another backslash precedes
/// this position, and `u005c` counts as a backslash too.
fn backslash(raw: &[u8], at: usize, escaped: bool) -> Option<usize> {
    const BACKSLASH: u32 = b'\\' as u32;
    match raw.get(at)? {
        b'\\' => Some(at + 1),
        b'u' if escaped && hex(raw, at + 1, 4) == Some(BACKSLASH) => Some(at + 5),
        b'%' => percent(raw, at).filter(|(byte, _)| *byte == b'\\').map(|(_, after)| after),
        _ => None,
    }
}

/// Returns the byte that is percent-encoded at `at`, once or several times, and the position after the encoding.
fn percent(raw: &[u8], at: usize) -> Option<(u8, usize)> {
    let mut at = at + 1;
    while raw[at..].starts_with(b"25") && hex(raw, at + 2, 2).is_some() {
        at += 2;
    }
    let byte = u8::try_from(hex(raw, at, 2)?).ok()?;
    Some((byte, at + 2))
}

/// Returns the hexadecimal number with this many digits.
fn hex(raw: &[u8], at: usize, digits: usize) -> Option<u32> {
    let digits = raw.get(at..at + digits)?;
    digits.iter().try_fold(0, |number, digit| Some(number << 4 | char::from(*digit).to_digit(16)?))
}
