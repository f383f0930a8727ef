//! Scalars as services write them: members left out, set to null or to another type. What can't be understood
//! counts as absent.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::counts::whole;

/// A text, borrowed where it has no escapes. Numbers are taken for their digits, all else for nothing.
#[derive(Default)]
pub(super) struct Text<'a>(Option<Cow<'a, str>>);

impl<'a> Text<'a> {
    /// The text; empty if there is none.
    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// The text, unless it is empty.
    pub(super) fn into_text(self) -> Option<Cow<'a, str>> {
        self.0.filter(|text| !text.is_empty())
    }
}

impl<'a> From<Cow<'a, str>> for Text<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self(Some(text))
    }
}

/// JSON text, or the JSON itself.
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

/// A number that counts.
#[derive(Clone, Copy, Default)]
pub(super) struct Count(pub(super) Option<u64>);

impl Count {
    pub(super) fn or_zero(self) -> u64 {
        self.0.unwrap_or(0)
    }
}

/// A number that measures.
#[derive(Clone, Copy, Default)]
pub(super) struct Amount(pub(super) Option<f64>);

/// What a value of unexpected type is read as.
pub(super) enum Scalar<'a> {
    None,
    Text(Cow<'a, str>),
    Whole(u64),
    Real(f64),
    Structure(Value),
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
