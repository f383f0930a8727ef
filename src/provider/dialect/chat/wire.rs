//! What comes over the wire. Compatible servers leave members out, set them to null or to another type:
//! what can't be understood counts as absent, unless the whole would lose its meaning.
//!
//! What is rare is boxed: most of the time that a chunk takes goes into moving these structs about.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;

/// A chunk of a stream, or a whole answer.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) model: Text<'a>,
    #[serde(borrow, default)]
    pub(super) object: Text<'a>,
    #[serde(borrow, default)]
    pub(super) message: Text<'a>,
    #[serde(borrow, default)]
    pub(super) choices: Option<Vec<Option<Choice<'a>>>>,
    #[serde(default)]
    pub(super) usage: Option<Box<Usage>>,
    #[serde(default)]
    pub(super) x_groq: Option<Box<XGroq>>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
}

/// Groq's own member, which carries usage even where it was not asked for.
#[derive(Deserialize)]
pub(super) struct XGroq {
    #[serde(default)]
    pub(super) usage: Option<Box<Usage>>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: Count,
    #[serde(borrow, default)]
    pub(super) delta: Option<Box<Piece<'a>>>,
    /// In place of `delta` in a whole answer; some services repeat the answer so far in it.
    #[serde(borrow, default)]
    pub(super) message: Option<Box<Piece<'a>>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Text<'a>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
    /// Moonshot's place for it.
    #[serde(default)]
    pub(super) usage: Option<Box<Usage>>,
}

#[derive(Deserialize)]
pub(super) struct Piece<'a> {
    #[serde(borrow, default)]
    pub(super) content: Parts<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning_content: Text<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning: Text<'a>,
    #[serde(default)]
    pub(super) reasoning_details: Option<Box<Value>>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Option<Vec<Option<ToolCall<'a>>>>,
    /// The only call, before there were several.
    #[serde(borrow, default)]
    pub(super) function_call: Option<Box<Function<'a>>>,
}

#[derive(Deserialize)]
pub(super) struct ToolCall<'a> {
    #[serde(default)]
    pub(super) index: Count,
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) function: Option<Function<'a>>,
}

#[derive(Default, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Arguments<'a>,
}

#[derive(Deserialize)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) prompt_tokens: Count,
    #[serde(default)]
    pub(super) completion_tokens: Count,
    #[serde(default)]
    pub(super) total_tokens: Count,
    #[serde(default)]
    pub(super) prompt_tokens_details: Option<PromptDetails>,
    #[serde(default)]
    pub(super) completion_tokens_details: Option<CompletionDetails>,
    /// DeepSeek's way of counting what came from the cache.
    #[serde(default)]
    pub(super) prompt_cache_hit_tokens: Count,
    /// Moonshot's.
    #[serde(default)]
    pub(super) cached_tokens: Count,
    /// OpenRouter's price, in US dollars.
    #[serde(default)]
    pub(super) cost: Amount,
}

#[derive(Deserialize)]
pub(super) struct PromptDetails {
    #[serde(rename = "cached_tokens", default)]
    pub(super) read: Count,
    /// OpenRouter's name.
    #[serde(rename = "cache_write_tokens", default)]
    pub(super) written: Count,
    /// Alibaba's name.
    #[serde(rename = "cache_creation_input_tokens", default)]
    pub(super) created: Count,
}

#[derive(Deserialize)]
pub(super) struct CompletionDetails {
    #[serde(default)]
    pub(super) reasoning_tokens: Count,
}

/// A text, borrowed where it has no escapes. Numbers are taken for their digits, all else for nothing.
#[derive(Default)]
pub(in crate::provider::dialect) struct Text<'a>(Option<Cow<'a, str>>);

impl<'a> Text<'a> {
    /// The text; empty if there is none.
    pub(in crate::provider::dialect) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// The text, unless it is empty.
    pub(in crate::provider::dialect) fn into_text(self) -> Option<Cow<'a, str>> {
        self.0.filter(|text| !text.is_empty())
    }
}

/// A text, or a list of parts that make one, as Mistral sends it: `text` and `thinking` parts.
#[derive(Default)]
pub(super) struct Parts<'a> {
    pub(super) text: Text<'a>,
    pub(super) thinking: Option<Box<str>>,
}

/// JSON text, or the JSON itself.
#[derive(Default)]
pub(super) struct Arguments<'a>(Text<'a>);

impl<'a> Arguments<'a> {
    pub(super) fn into_text(self) -> Option<Cow<'a, str>> {
        self.0.into_text()
    }
}

/// A number that counts.
#[derive(Clone, Copy, Default)]
pub(in crate::provider::dialect) struct Count(pub(in crate::provider::dialect) Option<u64>);

impl Count {
    pub(super) fn or_zero(self) -> u64 {
        self.0.unwrap_or(0)
    }
}

/// A number that measures.
#[derive(Clone, Copy, Default)]
pub(super) struct Amount(pub(super) Option<f64>);

/// What a value of unexpected type is read as.
enum Scalar<'a> {
    None,
    Text(Cow<'a, str>),
    Whole(u64),
    Real(f64),
    Structure(Value),
}

struct ScalarVisitor<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for ScalarVisitor<'a> {
    type Value = Scalar<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Scalar<'a>, E> {
        Ok(Scalar::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar<'a>, E> {
        Ok(Scalar::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_string<E>(self, text: String) -> Result<Scalar<'a>, E> {
        Ok(Scalar::Text(Cow::Owned(text)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar<'a>, E> {
        Ok(Scalar::Whole(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar<'a>, E> {
        Ok(u64::try_from(number).map_or(Scalar::None, Scalar::Whole))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Scalar<'a>, E> {
        Ok(Scalar::Real(number))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar<'a>, E> {
        Ok(Scalar::None)
    }

    fn visit_unit<E>(self) -> Result<Scalar<'a>, E> {
        Ok(Scalar::None)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Scalar<'a>, M::Error> {
        Value::deserialize(MapAccessDeserializer::new(map)).map(Scalar::Structure)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Scalar<'a>, S::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Scalar::Structure(Value::Array(items)))
    }
}

/// Reads text and nulls, the only things on the hot path, and passes over structures without building them.
struct TextVisitor<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for TextVisitor<'a> {
    type Value = Text<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'a>, E> {
        Ok(Text(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E>(self, text: &str) -> Result<Text<'a>, E> {
        Ok(Text(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_string<E>(self, text: String) -> Result<Text<'a>, E> {
        Ok(Text(Some(Cow::Owned(text))))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Text<'a>, E> {
        Ok(Text(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Text<'a>, E> {
        Ok(Text(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Text<'a>, E> {
        Ok(Text(None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Text<'a>, E> {
        Ok(Text(None))
    }

    fn visit_unit<E>(self) -> Result<Text<'a>, E> {
        Ok(Text(None))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Text<'a>, M::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Text<'a>, S::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Parts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(ScalarVisitor(PhantomData))? {
            Scalar::Text(text) => Self { text: Text(Some(text)), thinking: None },
            Scalar::Structure(parts) => {
                let (mut text, mut thinking) = (String::new(), String::new());
                gather(&parts, false, &mut text, &mut thinking);
                let thinking = (!thinking.is_empty()).then(|| thinking.into_boxed_str());
                Self { text: Text(Some(Cow::Owned(text))), thinking }
            }
            Scalar::None | Scalar::Whole(_) | Scalar::Real(_) => Self::default(),
        })
    }
}

fn gather(part: &Value, in_thinking: bool, text: &mut String, thinking: &mut String) {
    match part {
        Value::String(words) if in_thinking => thinking.push_str(words),
        Value::String(words) => text.push_str(words),
        Value::Array(parts) => parts.iter().for_each(|part| gather(part, in_thinking, text, thinking)),
        Value::Object(part) => match (part.get("thinking"), part.get("text")) {
            (Some(inner), _) => gather(inner, true, text, thinking),
            (None, Some(words)) => gather(words, in_thinking, text, thinking),
            _ => {}
        },
        _ => {}
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Arguments<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Text(match deserializer.deserialize_any(ScalarVisitor(PhantomData))? {
            Scalar::Text(text) => Some(text),
            Scalar::Structure(value) => Some(Cow::Owned(value.to_string())),
            Scalar::None | Scalar::Whole(_) | Scalar::Real(_) => None,
        })))
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match deserializer.deserialize_any(ScalarVisitor(PhantomData))? {
            Scalar::Whole(number) => Some(number),
            Scalar::Text(text) => text.trim().parse().ok(),
            Scalar::Real(number) => whole(number),
            Scalar::None | Scalar::Structure(_) => None,
        }))
    }
}

/// Counts stay far below the numbers that a float can't hold.
fn whole(number: f64) -> Option<u64> {
    let fits = (0.0..=f64::from(u32::MAX)).contains(&number) && number.fract() == 0.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    fits.then_some(number as u64)
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match deserializer.deserialize_any(ScalarVisitor(PhantomData))? {
            Scalar::Real(number) => Some(number),
            Scalar::Whole(number) => u32::try_from(number).ok().map(f64::from),
            Scalar::Text(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
            Scalar::None | Scalar::Structure(_) => None,
        }))
    }
}

/// A chunk from its JSON text.
pub(super) fn parse(data: &str) -> Result<Chunk<'_>, serde_json::Error> {
    // A list would be read as a struct without names.
    if !data.starts_with('{') {
        return Err(de::Error::custom("a JSON object was expected"));
    }
    serde_json::from_str(data)
}
