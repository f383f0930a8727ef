//! Lenient reading of scalars. Services omit members, set them to null or send values of another type. In most of these
//! types, a value that cannot be read is treated as absent.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Value, value::RawValue};

use super::counts::whole;
use crate::provider::halves;

/// A text, borrowed if it has no escapes. A whole number is read as its digits. Values of other types are ignored.
#[derive(Default)]
pub(super) struct Text<'a>(Option<Cow<'a, str>>);

impl<'a> Text<'a> {
    /// Returns the text, or an empty string if the text is absent.
    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns the text, unless it is empty.
    pub(super) fn into_text(self) -> Option<Cow<'a, str>> {
        self.0.filter(|text| !text.is_empty())
    }
}

impl<'a> From<Cow<'a, str>> for Text<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self(Some(text))
    }
}

/// The arguments of a tool call as JSON text. A service may send this text in a string, or send the JSON value itself.
#[derive(Default)]
pub(super) struct Arguments<'a>(Text<'a>);

impl<'a> Arguments<'a> {
    pub(super) fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub(super) fn into_text(self) -> Option<Cow<'a, str>> {
        self.0.into_text()
    }
}

/// JSON text. Any value other than a string or null is an error.
#[derive(Default)]
pub(super) struct JsonText<'a>(Text<'a>);

impl<'a> JsonText<'a> {
    pub(super) fn into_text(self) -> Option<Cow<'a, str>> {
        self.0.into_text()
    }
}

/// A count or an index. It is `None` if it is absent or cannot be read.
#[derive(Clone, Copy, Default)]
pub(super) struct Count(pub(super) Option<u64>);

impl Count {
    pub(super) fn or_zero(self) -> u64 {
        self.0.unwrap_or(0)
    }
}

/// A value in a report, which may be unreadable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reported<T> {
    #[default]
    Nothing,
    Value(T),
    Unreadable,
}

impl<T> Reported<T> {
    /// Returns this value, or `other` if this value is absent.
    pub(super) fn or(self, other: Self) -> Self {
        if matches!(self, Self::Nothing) { other } else { self }
    }
}

impl<T> From<Option<T>> for Reported<T> {
    /// Returns the value, or `Unreadable` for `None`.
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unreadable, Self::Value)
    }
}

/// A JSON value of any type, for members whose type may be unexpected.
pub(super) enum Scalar<'a> {
    None,
    Text(Cow<'a, str>),
    Whole(u64),
    Real(f64),
    Structure(Value),
    /// A boolean or a negative number.
    Other,
}

pub(super) struct ScalarVisitor<'a>(pub(super) PhantomData<&'a str>);

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
        Ok(u64::try_from(number).map_or(Scalar::Other, Scalar::Whole))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Scalar<'a>, E> {
        Ok(Scalar::Real(number))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar<'a>, E> {
        Ok(Scalar::Other)
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

/// Reads a [`Text`]. Structures are skipped without building them.
struct TextVisitor<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for TextVisitor<'a> {
    type Value = Text<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
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

impl<'de: 'a, 'a> Deserialize<'de> for Arguments<'a> {
    /// Keeps the JSON unchanged, including repeated keys, at any depth. Only unpaired halves of surrogate pairs are
    /// replaced. Arguments that cannot be used do not cause the response to fail.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?.get();
        let text = match json.as_bytes() {
            [b'n', ..] => Text(None),
            [b'"', ..] => serde_json::from_str(json).map_err(de::Error::custom)?,
            _ => Text(Some(halves::replaced(json).map_or(Cow::Borrowed(json), Cow::Owned))),
        };
        Ok(Self(text))
    }
}

struct JsonTextVisitor<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for JsonTextVisitor<'a> {
    type Value = JsonText<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON text in a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<JsonText<'a>, E> {
        Ok(JsonText(Text(Some(Cow::Borrowed(text)))))
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonText<'a>, E> {
        Ok(JsonText(Text(Some(Cow::Owned(text.to_owned())))))
    }

    fn visit_unit<E>(self) -> Result<JsonText<'a>, E> {
        Ok(JsonText::default())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonTextVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match deserializer.deserialize_any(ScalarVisitor(PhantomData))? {
            Scalar::Whole(number) => Some(number),
            Scalar::Text(text) => text.trim().parse().ok(),
            Scalar::Real(number) => whole(number),
            Scalar::None | Scalar::Other | Scalar::Structure(_) => None,
        }))
    }
}

/// Reads a count of tokens.
impl<'de> Deserialize<'de> for Reported<u64> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(ScalarVisitor(PhantomData))? {
            Scalar::Whole(number) => Self::Value(number),
            Scalar::None => Self::Nothing,
            Scalar::Real(number) => whole(number).into(),
            Scalar::Text(text) => text.trim().parse().ok().into(),
            Scalar::Other | Scalar::Structure(_) => Self::Unreadable,
        })
    }
}

/// Reads an amount of money.
impl<'de> Deserialize<'de> for Reported<f64> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let amount = match deserializer.deserialize_any(ScalarVisitor(PhantomData))? {
            Scalar::Real(number) => Some(number),
            Scalar::Whole(number) => u32::try_from(number).ok().map(f64::from),
            Scalar::Text(text) => text.trim().parse().ok(),
            Scalar::None => return Ok(Self::Nothing),
            Scalar::Other | Scalar::Structure(_) => None,
        };
        Ok(amount.filter(|amount: &f64| amount.is_finite() && *amount >= 0.0).into())
    }
}

/// Reads a part of a usage report.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for Reported<Box<T>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PartVisitor(PhantomData))
    }
}

struct PartVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for PartVisitor<T> {
    type Value = Reported<Box<T>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        Box::deserialize(MapAccessDeserializer::new(map)).map(Reported::Value)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Reported::Nothing)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Reported::Unreadable)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Reported::Unreadable)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Reported::Unreadable)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Reported::Unreadable)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Reported::Unreadable)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Reported::Unreadable)
    }
}
