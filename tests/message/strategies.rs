//! Random messages of every kind.

use omni_agent::message::{
    Attachment, Content, Message, ProviderItem, ResultBlock, Role, Text, Thinking, Timestamp, ToolResult,
    ToolUse,
};
use proptest::{collection::vec, option, prelude::*};
use serde_json::{Map, Number, Value};

pub(crate) fn text() -> impl Strategy<Value = String> {
    "\\PC{0,12}|[\\x00-\\x1f\"\\\\\u{2028}é😀]{0,4}"
}

pub(crate) fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        // Fractions with a short decimal form. `float_of_any_value_survives` tests all other fractions.
        any::<i32>().prop_map(|n| Value::from(f64::from(n) / 8.0)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((text(), inner), 0..4)
                .prop_map(|members| { Value::Object(members.into_iter().collect::<Map<_, _>>()) }),
        ]
    })
}

pub(crate) fn object() -> impl Strategy<Value = Map<String, Value>> {
    vec((text(), value()), 0..3).prop_map(|members| members.into_iter().collect())
}

fn text_block() -> impl Strategy<Value = Text> {
    (text(), option::of(text())).prop_map(|(text, signature)| {
        let mut block = Text::new(text);
        block.signature = signature;
        block
    })
}

fn attachment() -> impl Strategy<Value = Attachment> {
    (any::<bool>(), text(), text(), option::of(text()), object()).prop_map(
        |(inline, media_type, at, name, metadata)| {
            let mut block =
                if inline { Attachment::base64(media_type, at) } else { Attachment::url(media_type, at) };
            block.name = name;
            block.metadata = metadata;
            block
        },
    )
}

fn tool_use() -> impl Strategy<Value = ToolUse> {
    (undecided(), option::of(text())).prop_map(|(mut block, decided)| {
        block.decided = decided.map(|text| Box::new(ToolResult::error(&block, text)));
        block
    })
}

fn undecided() -> impl Strategy<Value = ToolUse> {
    (text(), text(), value(), option::of(text()), option::of(text())).prop_map(
        |(id, name, input, malformed, signature)| {
            let mut block = ToolUse::new(id, name, input);
            block.malformed = malformed;
            block.signature = signature;
            block
        },
    )
}

fn tool_result() -> impl Strategy<Value = ToolResult> {
    let block =
        prop_oneof![text_block().prop_map(ResultBlock::from), attachment().prop_map(ResultBlock::from)];
    (tool_use(), vec(block, 0..3), any::<bool>()).prop_map(|(tool_use, content, is_error)| {
        let mut result = ToolResult::ok(&tool_use, "");
        result.content = content;
        result.is_error = is_error;
        result
    })
}

pub(crate) fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        text_block().prop_map(Content::from),
        (text(), option::of(text()), option::of(text())).prop_map(|(text, signature, redacted)| {
            let mut block = Thinking::new(text);
            block.signature = signature;
            block.redacted = redacted;
            block.into()
        }),
        attachment().prop_map(Content::from),
        tool_use().prop_map(Content::from),
        tool_result().prop_map(Content::from),
        (text(), value()).prop_map(|(format, data)| ProviderItem::new(format, data).into()),
    ]
}

pub(crate) fn message() -> impl Strategy<Value = Message> {
    let extras = (option::of(text()), option::of(value()));
    (any::<bool>(), vec(content(), 0..5), any::<u64>(), object(), extras).prop_map(
        |(user, content, timestamp, provider_data, (id, app_data))| {
            let mut message = Message::new(if user { Role::User } else { Role::Assistant }, content);
            message.timestamp = Timestamp(timestamp);
            message.provider_data = provider_data;
            message.id = id.map(Into::into);
            message.with_app_data(app_data.unwrap_or_default())
        },
    )
}

/// A 64-bit float with any bits that JSON can represent.
pub(crate) fn float() -> impl Strategy<Value = Value> {
    any::<u64>().prop_filter_map("not finite", |bits| Number::from_f64(f64::from_bits(bits)).map(Value::from))
}
