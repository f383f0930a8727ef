//! Options: how they are merged and stored, and how their secrets are kept out of all output.

use std::{collections::BTreeMap, time::Duration};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD},
};
use omni_agent::provider::{
    CacheHint, Effort, Options, OutputSchema, Secret, ThinkingMode, ToolChoice, UnsupportedAttachment,
};
use omni_agent::tool::Schema;
use proptest::{collection::vec, prelude::*, sample::subsequence};
use serde_json::{Value, from_value, json, to_value};

const KEY: &str = "sk-telling-key";
const HEADER: &str = "telling-header";

/// A function that sets an option to a value that depends on `n`.
type Set = fn(Options, u8) -> Options;

/// A setter for each option.
const SETS: &[(&str, Set)] = &[
    ("max_tokens", |o, n| o.with_max_tokens(n.into())),
    ("temperature", |o, n| o.with_temperature(f64::from(n) / 2.0)),
    ("top_p", |o, n| o.with_top_p(f64::from(n) / 4.0)),
    ("stop_sequences", |o, n| o.with_stop_sequences([n.to_string()])),
    ("thinking", |o, n| o.with_thinking(ThinkingMode::Budget(n.into()))),
    ("tool_choice", |o, n| o.with_tool_choice(ToolChoice::Tool(n.to_string()))),
    ("cache", |o, n| o.with_cache(if n % 2 == 0 { CacheHint::Short } else { CacheHint::Long })),
    ("output", |o, n| {
        let schema = json!({ "type": "object", "maxProperties": n });
        o.with_output(OutputSchema::new("answer", Schema::new(schema).unwrap()))
    }),
    ("output_retries", |o, n| o.with_output_retries(n.into())),
    ("metadata", |o, n| o.with_metadata([("n", n)])),
    ("timeout", |o, n| o.with_timeout(Duration::from_millis(n.into()))),
    ("max_retries", |o, n| o.with_max_retries(n.into())),
    ("unsupported_attachment", |o, n| {
        o.with_unsupported_attachment(if n % 2 == 0 {
            UnsupportedAttachment::Error
        } else {
            UnsupportedAttachment::Placeholder
        })
    }),
    ("extra", |o, n| o.with_extra([("n", json!([n]))])),
    ("backend", |o, n| o.with_folder(n.to_string())),
    ("api_key", |o, n| o.with_api_key(format!("{KEY}-{n}"))),
    ("headers", |o, n| o.with_header("X-Name", format!("{HEADER}-{n}"))),
];

fn set(sets: &[usize], n: u8) -> Options {
    sets.iter().fold(Options::default(), |options, &index| SETS[index].1(options, n))
}

/// Returns the options as JSON, including the secret options.
fn revealed(options: &Options) -> Value {
    let mut value = to_value(options).unwrap();
    if let Some(key) = options.api_key() {
        value["api_key"] = json!(key.reveal());
    }
    if let Some(headers) = options.headers() {
        let headers: BTreeMap<_, _> = headers.iter().map(|(name, value)| (name, value.reveal())).collect();
        value["headers"] = json!(headers);
    }
    value
}

fn some_sets() -> impl Strategy<Value = Vec<usize>> {
    let all: Vec<usize> = (0..SETS.len()).collect();
    (0..=SETS.len()).prop_flat_map(move |count| subsequence(all.clone(), count))
}

proptest! {
    #[test]
    fn overlaid_uses_each_option_of_the_upper_if_set(
        lower in some_sets(), upper in some_sets(), n in any::<u8>(), m in any::<u8>(),
    ) {
        let both = revealed(&set(&lower, n).overlaid(&set(&upper, m)));
        let (lower_value, upper_value) = (revealed(&set(&lower, n)), revealed(&set(&upper, m)));
        for (index, (name, _)) in SETS.iter().enumerate() {
            let expected = if upper.contains(&index) { &upper_value[name] } else { &lower_value[name] };
            prop_assert_eq!(both.get(name).unwrap_or(&Value::Null), expected, "{}", name);
        }
    }

    #[test]
    fn serde_keeps_everything_except_secrets(sets in some_sets(), n in any::<u8>()) {
        let options = set(&sets, n);
        let value = to_value(&options).unwrap();
        let stored = value.as_object().unwrap();
        for (index, (name, _)) in SETS.iter().enumerate() {
            let secret = ["api_key", "headers"].contains(name);
            prop_assert_eq!(stored.contains_key(*name), sets.contains(&index) && !secret, "{}", name);
        }
        prop_assert!(!value.to_string().contains("telling"));
        let mut expected = options.clone();
        expected.set_api_key(None);
        expected.set_headers(None);
        prop_assert_eq!(from_value::<Options>(value).unwrap(), expected);
    }

    #[test]
    fn debug_never_shows_secrets(sets in some_sets(), n in any::<u8>()) {
        let options = set(&sets, n);
        for debug in [format!("{options:?}"), format!("{options:#?}")] {
            prop_assert!(!debug.contains("telling"), "{debug}");
        }
    }

    #[test]
    fn is_empty_until_anything_is_set(sets in vec(0..SETS.len(), 0..3)) {
        prop_assert_eq!(set(&sets, 1).is_empty(), sets.is_empty());
        prop_assert_eq!(set(&sets, 1) == Options::default(), sets.is_empty());
    }
}

#[test]
fn options_encode_to_the_stored_format() {
    let all: Vec<usize> = (0..SETS.len()).collect();
    let value = json!({
        "max_tokens": 3,
        "temperature": 1.5,
        "top_p": 0.75,
        "stop_sequences": ["3"],
        "thinking": { "budget": 3 },
        "tool_choice": { "tool": "3" },
        "cache": "long",
        "output": { "name": "answer", "schema": { "type": "object", "maxProperties": 3 } },
        "output_retries": 3,
        "metadata": { "n": 3 },
        "timeout": { "secs": 0, "nanos": 3_000_000 },
        "max_retries": 3,
        "unsupported_attachment": "placeholder",
        "extra": { "n": [3] },
        "backend": { "folder": "3" },
    });
    assert_eq!(to_value(set(&all, 3)).unwrap(), value);
    assert_eq!(to_value(Options::default()).unwrap(), json!({}));
}

#[test]
fn options_from_json_ignore_secrets_and_unknown_members() {
    let value = json!({ "api_key": "k", "headers": { "a": "b" }, "max_tokens": 1, "later": true });
    assert_eq!(from_value::<Options>(value).unwrap(), Options::default().with_max_tokens(1));
}

#[test]
fn with_header_adds_to_the_others() {
    let base = BTreeMap::from([("A".to_owned(), Secret::new("1")), ("B".to_owned(), Secret::new("2"))]);
    let headers = Options::default()
        .with_headers(base)
        .with_header("B", "3")
        .with_header("C", "4")
        .headers()
        .cloned()
        .unwrap();
    let values: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.reveal())).collect();
    assert_eq!(values, [("A", "1"), ("B", "3"), ("C", "4")]);
}

#[test]
fn with_thinking_accepts_a_level() {
    assert_eq!(
        Options::default().with_thinking(Effort::High).thinking(),
        Some(ThinkingMode::Effort(Effort::High))
    );
    assert!(Effort::Minimal < Effort::Low && Effort::High < Effort::Max);
}

#[test]
fn output_schema_of_a_type_has_a_name_that_services_accept() {
    #[derive(schemars::JsonSchema)]
    #[schemars(rename = "Größe <of> a very long name that goes on and on and on, well beyond the limit")]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Odd {
        size: u32,
    }

    let output = OutputSchema::of::<Odd>();
    assert_eq!(output.name.len(), 64);
    assert!(output.name.starts_with("Gr__e__of__a_very"), "{}", output.name);
    assert!(output.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
    assert!(output.schema.as_value()["properties"]["size"].is_object());
}

#[test]
fn secret_is_never_shown() {
    let secret = Secret::new(KEY);
    assert_eq!(format!("{secret:?} {secret:#?}"), "[secret] [secret]");
    assert_eq!(secret.reveal(), KEY);
    assert_eq!(secret, Secret::from(KEY.to_owned()));
}

#[test]
fn scrub_replaces_every_occurrence() {
    let secret = Secret::new(KEY);
    let scrubbed = secret.scrub(&format!("{KEY}: bad key '{KEY}'{KEY}"));
    assert_eq!(scrubbed, "[secret]: bad key '[secret]'[secret]");
    assert_eq!(secret.scrub("nothing here"), "nothing here");
}

#[test]
fn scrub_replaces_the_value_in_its_json_form() {
    let secret = Secret::new(r#"pass"word\1"#);
    let body = json!({ "given": secret.reveal() }).to_string();
    assert_eq!(secret.scrub(&body), r#"{"given":"[secret]"}"#);
}

#[test]
fn scrub_of_a_header_value_also_replaces_the_credentials_alone() {
    let secret = Secret::new(format!("Bearer {KEY}"));
    let scrubbed = secret.scrub(&format!("Authorization: Bearer {KEY} holds {KEY}"));
    assert_eq!(scrubbed, "Authorization: [secret] holds [secret]");
    assert_eq!(secret.scrub("no Bearer given"), "no Bearer given");
}

#[test]
fn scrub_of_a_short_value_leaves_the_text() {
    for short in ["", " ", "a", "error", "Bearer a", "x  "] {
        assert_eq!(Secret::new(short).scrub("an error: Bear a b"), "an error: Bear a b", "{short:?}");
    }
}

/// A key that contains the characters that the encodings escape.
const LONG_KEY: &str = "sk-proj-Zq4+7f/xT_9wLm\"2-Rb8\\cVnE6/uH1=";

fn percent(text: &str, all: bool) -> String {
    text.bytes()
        .map(|byte| {
            if all || !byte.is_ascii_alphanumeric() {
                format!("%{byte:02X}")
            } else {
                char::from(byte).to_string()
            }
        })
        .collect()
}

/// Returns the forms in which services echo a value, each with its name.
fn echoes(value: &str) -> Vec<(&'static str, String)> {
    let json_of = |text: &str| {
        let json = serde_json::to_string(text).unwrap();
        json[1..json.len() - 1].to_owned()
    };
    let json = json_of(value);
    let slashes = json.replace('/', "\\/");
    let unicode = value.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<Vec<_>>().concat();
    let upper = value.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect::<Vec<_>>().concat();
    let nested = json_of(&slashes);
    let before = |bytes: &str| format!("{bytes}{value}, and more");
    vec![
        ("as it is", value.to_owned()),
        ("JSON", json),
        ("JSON with escaped slashes", slashes),
        ("JSON in escapes only", unicode.clone()),
        ("JSON in large escapes only", upper),
        ("JSON in JSON", nested),
        ("escapes in JSON", json_of(&unicode)),
        ("percent", percent(value, false)),
        ("percent for all", percent(value, true)),
        ("percent in small letters", percent(value, true).to_lowercase()),
        ("percent twice", percent(&percent(value, false), false)),
        ("base64", STANDARD.encode(value)),
        ("base64 without padding", STANDARD_NO_PAD.encode(value)),
        ("base64 for URLs", URL_SAFE.encode(value)),
        ("base64 behind one byte", STANDARD.encode(before(":"))),
        ("base64 behind two bytes", STANDARD.encode(before("u:"))),
        ("base64 behind three bytes", URL_SAFE_NO_PAD.encode(before("me:"))),
        ("base64 in percent", percent(&STANDARD.encode(value), false)),
        ("base64 in JSON", STANDARD.encode(before("u:")).replace('/', "\\/")),
    ]
}

#[test]
fn scrub_replaces_the_value_in_every_form() {
    let secret = Secret::new(LONG_KEY);
    for (form, echo) in echoes(LONG_KEY) {
        let scrubbed = secret.scrub(&format!("The key '{echo}' is wrong."));
        assert!(scrubbed.starts_with("The key '") && scrubbed.ends_with("' is wrong."), "{form}: {scrubbed}");
        assert!(scrubbed.contains("[secret]"), "{form}: {scrubbed}");
        // In Base64, the encoded text around the value is kept, so the result may be longer.
        let most = if form.starts_with("base64") { 60 } else { 32 };
        assert!(scrubbed.len() <= most, "{form}: {scrubbed}");
    }
}

#[test]
fn scrub_replaces_every_part_of_eight_characters() {
    let secret = Secret::new(LONG_KEY);
    for start in 0..LONG_KEY.len() - 8 {
        for length in [8, 11] {
            // Parts with a backslash are skipped, because the backslash of the value can't be distinguished from that
            // of an escape.
            let part = LONG_KEY.get(start..start + length).filter(|part| !part.contains('\\'));
            let Some(part) = part else { continue };
            for (form, echo) in echoes(part) {
                let scrubbed = secret.scrub(&format!("key (…{echo}…)"));
                let public = "sk-proj-".contains(part);
                assert_eq!(scrubbed.contains("[secret]"), !public, "{form} of {part:?}: {scrubbed}");
            }
        }
    }
}

#[test]
fn scrub_leaves_harmless_text() {
    let text = "Incorrect API key provided: sk-proj-****uH1=. Keys begin with sk-proj-, \\u0073k-proj- or sk-ant-api03-.";
    assert_eq!(Secret::new(LONG_KEY).scrub(text), text);
    assert_eq!(Secret::new("sk-ant-api03-Zq47fxT9wLm2").scrub(text), text);
    // Parts of a short value are not replaced, because half of it may be an ordinary word.
    assert_eq!(Secret::new("password-1").scrub("a password-2 and password-1"), "a password-2 and [secret]");
    let text = "Bearer tokens: 100%, \\\\, \\u, \\u12, %, %2, %zz, é\\u00e9 \\ud83d 日本";
    assert_eq!(Secret::new(format!("Bearer {LONG_KEY}")).scrub(text), text);
}

#[test]
fn scrub_next_to_multibyte_characters_keeps_those() {
    let secret = Secret::new("ééééééZq47fxT9é");
    assert_eq!(secret.scrub("日ééééééZq47fxT9é本"), "日[secret]本");
    let scrubbed = secret.scrub("\u{129}éééZq47fxT9本");
    assert!(scrubbed.ends_with("[secret]本"), "{scrubbed}");
}

proptest! {
    #[test]
    fn scrub_of_any_text_around_the_value_removes_all_of_it(
        before in "[a-z%\\\\u0-9é\"]{0,12}", after in "[a-z%\\\\u0-9é\"]{0,12}", form in 0usize..19,
    ) {
        let (name, echo) = echoes(LONG_KEY).swap_remove(form);
        let scrubbed = Secret::new(LONG_KEY).scrub(&format!("{before} {echo} {after}"));
        prop_assert!(scrubbed.contains("[secret]"), "{}: {}", name, scrubbed);
        for window in echo.as_bytes().windows(14) {
            prop_assert!(!scrubbed.as_bytes().windows(14).any(|part| part == window) || name.starts_with("base64 "), "{}: {}", name, scrubbed);
        }
    }

    #[test]
    fn scrub_of_any_text_without_the_value_changes_nothing(text in "\\PC{0,80}") {
        prop_assert_eq!(Secret::new(LONG_KEY).scrub(&text), text);
    }
}
