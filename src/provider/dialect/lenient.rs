//! Lenient reading of responses. Services omit members, set them to null or send values of another type. In most of
//! these types, a value that cannot be read is treated as absent.

use std::{borrow::Cow, fmt, marker::PhantomData, ops::Deref};

use serde::{
    Deserialize, Deserializer,
    de::{
        self, IgnoredAny, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    json::halves,
    message::Usage,
    provider::{Delta, MessageDelta},
};

/// A text, borrowed if it has no escapes. A whole number is read as its digits. Values of other types are ignored.
#[derive(Default)]
pub(super) struct LenientText<'a>(Option<Cow<'a, str>>);

impl<'a> LenientText<'a> {
    /// Returns the text, or an empty string if the text is absent.
    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns the text, unless it is empty.
    pub(super) fn into_text(self) -> Option<Cow<'a, str>> {
        self.0.filter(|text| !text.is_empty())
    }
}

impl<'a> From<Cow<'a, str>> for LenientText<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self(Some(text))
    }
}

/// The arguments of a tool call as JSON text. A service may send this text in a string, or send the JSON value itself.
#[derive(Default)]
pub(super) struct ToolCallArguments<'a>(LenientText<'a>);

impl<'a> ToolCallArguments<'a> {
    pub(super) fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub(super) fn into_text(self) -> Option<Cow<'a, str>> {
        self.0.into_text()
    }
}

/// A string or null, borrowed unless it has escapes. Any other value is an error.
#[derive(Default)]
pub(super) struct StrictText<'a>(pub(super) Cow<'a, str>);

impl Deref for StrictText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<StrictText<'_>> for String {
    fn from(text: StrictText<'_>) -> Self {
        text.0.into_owned()
    }
}

/// A count or an index. It is `None` if it is absent or cannot be read.
#[derive(Clone, Copy, Default)]
pub(super) struct LenientInteger(pub(super) Option<u64>);

impl LenientInteger {
    pub(super) fn or_zero(self) -> u64 {
        self.0.unwrap_or(0)
    }
}

/// A JSON value of any type, for members whose type may be unexpected. Lists and objects have the type `S`, which is
/// [`Value`], or [`IgnoredAny`] to skip them.
pub(super) enum AnyJsonValue<'a, S> {
    None,
    Text(Cow<'a, str>),
    Whole(u64),
    Negative(i64),
    Real(f64),
    Bool,
    Structure(S),
}

struct AnyJsonValueVisitor<'a, S>(PhantomData<(&'a str, S)>);

impl<'de: 'a, 'a, S: Deserialize<'de>> Visitor<'de> for AnyJsonValueVisitor<'a, S> {
    type Value = AnyJsonValue<'a, S>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(AnyJsonValue::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(AnyJsonValue::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(AnyJsonValue::Text(Cow::Owned(text)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(AnyJsonValue::Whole(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(u64::try_from(number).map_or(AnyJsonValue::Negative(number), AnyJsonValue::Whole))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(AnyJsonValue::Real(number))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(AnyJsonValue::Bool)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(AnyJsonValue::None)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        S::deserialize(MapAccessDeserializer::new(map)).map(AnyJsonValue::Structure)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        S::deserialize(SeqAccessDeserializer::new(seq)).map(AnyJsonValue::Structure)
    }
}

impl<'de: 'a, 'a, S: Deserialize<'de>> Deserialize<'de> for AnyJsonValue<'a, S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyJsonValueVisitor(PhantomData))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for LenientText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match AnyJsonValue::<IgnoredAny>::deserialize(deserializer)? {
            AnyJsonValue::Text(text) => Some(text),
            AnyJsonValue::Whole(number) => Some(number.to_string().into()),
            AnyJsonValue::Negative(number) => Some(number.to_string().into()),
            AnyJsonValue::None | AnyJsonValue::Real(_) | AnyJsonValue::Bool | AnyJsonValue::Structure(_) => {
                None
            }
        }))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ToolCallArguments<'a> {
    /// Keeps the JSON unchanged, including repeated keys, at any depth. Only unpaired halves of surrogate pairs are
    /// replaced. Arguments that cannot be used do not cause the response to fail.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?.get();
        let text = match json.as_bytes() {
            [b'n', ..] => LenientText(None),
            [b'"', ..] => serde_json::from_str(json).map_err(de::Error::custom)?,
            _ => LenientText(Some(halves::replaced(json.as_bytes()).map_or(Cow::Borrowed(json), Cow::Owned))),
        };
        Ok(Self(text))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for StrictText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNullVisitor;

        impl<'de> Visitor<'de> for TextOrNullVisitor {
            type Value = StrictText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON text in a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<StrictText<'de>, E> {
                Ok(StrictText(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<StrictText<'de>, E> {
                Ok(StrictText(Cow::Owned(text.to_owned())))
            }

            fn visit_unit<E>(self) -> Result<StrictText<'de>, E> {
                Ok(StrictText::default())
            }
        }

        deserializer.deserialize_any(TextOrNullVisitor)
    }
}

impl<'de> Deserialize<'de> for LenientInteger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match AnyJsonValue::<IgnoredAny>::deserialize(deserializer)? {
            AnyJsonValue::Whole(number) => Some(number),
            AnyJsonValue::Text(text) => text.trim().parse().ok(),
            AnyJsonValue::Real(number) => whole(number),
            AnyJsonValue::None
            | AnyJsonValue::Negative(_)
            | AnyJsonValue::Bool
            | AnyJsonValue::Structure(_) => None,
        }))
    }
}

/// A service's usage report. An unreadable count is ignored with a warning, because it must not make a response fail.
pub(super) struct ReportedUsage<'v> {
    members: Option<&'v Map<String, Value>>,
    /// The text before the name of a member in a warning.
    prefix: &'static str,
    /// The first member that cannot be read.
    unreadable: Option<String>,
}

impl<'v> ReportedUsage<'v> {
    /// Reads `report`, which is the value of the response's member `name`. A warning names a member of the report by
    /// `prefix` and the member's path.
    pub(super) fn of(name: &str, prefix: &'static str, report: &'v Value) -> Self {
        let unreadable = !report.is_null() && !report.is_object();
        Self { members: report.as_object(), prefix, unreadable: unreadable.then(|| name.to_owned()) }
    }

    /// Returns whether the report is missing or is not an object.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_none()
    }

    /// Returns the count at this path, if the service reports it.
    pub(super) fn count(&mut self, path: &[&str]) -> Option<u64> {
        self.read(path, |value| match value {
            Value::Number(number) => number.as_u64().or_else(|| whole(number.as_f64()?)),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        })
    }

    /// Returns the number of tokens that were written to the cache. `details` is the member that contains it. Its names are
    /// those of OpenRouter, Alibaba, LiteLLM and New API.
    pub(super) fn cache_writes(&mut self, details: &str) -> Option<u64> {
        let names = [
            "cache_write_tokens",
            "cache_creation_input_tokens",
            "cache_creation_tokens",
            "cached_creation_tokens",
        ];
        names.into_iter().find_map(|name| self.count(&[details, name]))
    }

    /// Returns the amount of money at this path, if the service reports it.
    pub(super) fn amount(&mut self, path: &[&str]) -> Option<f64> {
        let amount = |value: &Value| match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        self.read(path, |value| amount(value).filter(|amount| amount.is_finite() && *amount >= 0.0))
    }

    /// Returns `usage` with its reasoning tokens. The output of some services does not include them, which the total
    /// shows: at xAI, the total is the sum of the prompt, output and reasoning tokens. Gateways to Gemini count reasoning
    /// tokens only in the total. At other gateways, the rest of the total are tokens of a cache.
    pub(super) fn with_reasoning(&mut self, usage: Usage, reasoning: Option<u64>) -> Usage {
        let prompt = usage.input + usage.cache_read + usage.cache_write;
        let rest = self.count(&["total_tokens"]).unwrap_or(0).saturating_sub(prompt);
        let read = ["prompt_tokens_details", "input_tokens_details"];
        let read = read.into_iter().find_map(|details| self.count(&[details, "cached_tokens"])).unwrap_or(0);
        let cached = read.max(usage.cache_read).saturating_add(usage.cache_write);
        let is_apart = match reasoning {
            Some(reasoning) => usage.output.checked_add(reasoning) == Some(rest),
            None => prompt > 0 && usage.output < rest && rest - usage.output != cached,
        };
        let reasoning = reasoning.unwrap_or(0);
        let output = if is_apart { rest } else { usage.output.max(reasoning) };
        Usage { output, reasoning, ..usage }
    }

    /// Returns the cost of the request in US dollars. OpenRouter reports it as a number, Perplexity as the total of an
    /// object, and xAI in units of 10⁻¹⁰ dollars: <https://docs.x.ai/developers/cost-tracking>. If the user's own key at the underlying
    /// service was used, `cost` contains only OpenRouter's fee, because the service itself charges for the tokens:
    /// <https://openrouter.ai/docs/use-cases/byok>. Then the cost is known only with the service's part.
    pub(super) fn cost(&mut self) -> Option<f64> {
        let is_object = self.members?.get("cost").is_some_and(Value::is_object);
        let cost = self.amount(if is_object { &["cost", "total_cost"] } else { &["cost"] });
        if is_object && cost.is_none() {
            self.fail::<f64>(&["cost"]);
        }
        let cost = cost.or_else(|| Some(self.amount(&["cost_in_usd_ticks"])? / 1e10));
        if self.members?.get("is_byok") != Some(&Value::Bool(true)) {
            return cost;
        }
        Some(self.amount(&["cost_details", "upstream_inference_cost"])? + cost.unwrap_or(0.0))
    }

    fn read<T>(&mut self, path: &[&str], read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let mut members = self.members?;
        let (last, parents) = path.split_last()?;
        for (depth, parent) in parents.iter().enumerate() {
            match members.get(*parent)? {
                Value::Null => return None,
                Value::Object(inner) => members = inner,
                _ => return self.fail(&path[..=depth]),
            }
        }
        match members.get(*last)? {
            Value::Null => None,
            value => read(value).or_else(|| self.fail(path)),
        }
    }

    fn fail<T>(&mut self, path: &[&str]) -> Option<T> {
        self.unreadable.get_or_insert_with(|| format!("{}{}", self.prefix, path.join(".")));
        None
    }

    /// Emits a warning if a count could not be read. `warned` limits the warnings to one per response.
    pub(super) fn warn(self, warned: &mut bool, deltas: &mut Vec<Delta>) {
        if let Some(member) = self.unreadable
            && !std::mem::replace(warned, true)
        {
            deltas.push(Delta::warning(format!(
                "usage is incomplete: the service reports `{member}` in a form that cannot be read as a number"
            )));
        }
    }
}

/// The usage of one response, for wire formats that report it as a whole, perhaps repeatedly. The last report counts.
#[derive(Debug, Default)]
pub(super) struct LatestUsage {
    /// Whether the request asks for usage.
    expected: bool,
    usage: Option<Usage>,
    /// Whether the warning about unreadable usage was emitted.
    warned: bool,
}

impl LatestUsage {
    /// Returns the state before the first report. `expected` indicates whether the request asks for usage.
    pub(super) fn new(expected: bool) -> Self {
        Self { expected, ..Self::default() }
    }

    /// Emits the usage in a report, which `read` reads, and warns about its unreadable counts.
    pub(super) fn report(
        &mut self,
        mut report: ReportedUsage<'_>,
        read: fn(&mut ReportedUsage<'_>) -> Usage,
        deltas: &mut Vec<Delta>,
    ) {
        let usage = if report.is_empty() { None } else { Some(read(&mut report)) };
        report.warn(&mut self.warned, deltas);
        if usage.is_some() && self.usage != usage {
            self.usage = usage;
            deltas.push(Delta::Message(Box::new(MessageDelta { usage, ..MessageDelta::default() })));
        }
    }

    /// Records that the response is complete and that its usage is not reported in another event.
    pub(super) fn is_settled(&mut self) {
        self.expected = false;
    }

    /// Emits a warning if the stream ended before an expected usage report arrived.
    pub(super) fn end(&self, deltas: &mut Vec<Delta>) {
        if self.expected && self.usage.is_none() && !self.warned {
            let warning = "usage is unknown: the stream ended before the service reported it";
            deltas.push(Delta::warning(warning));
        }
    }
}

/// Converts a float to a count, if it is a whole number. Every actual count is so small that a float represents it
/// exactly.
fn whole(number: f64) -> Option<u64> {
    let fits = (0.0..=f64::from(u32::MAX)).contains(&number) && number.fract() == 0.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    fits.then_some(number as u64)
}
