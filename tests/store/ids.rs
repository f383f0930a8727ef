//! Ids: which texts are valid ids, and how write ids are written as text.

use std::collections::HashSet;

use omni_agent::{
    InvalidId,
    store::{
        ConversationId,
        custom::{Version, WriteId},
    },
};
use proptest::prelude::*;

#[test]
fn new_of_valid_text_keeps_it() {
    for text in ["a", "A-b_c.d~e", "0", "console", "com10", "nulls.txt", &"x".repeat(128)] {
        assert_eq!(ConversationId::new(text).unwrap().as_str(), text);
    }
}

#[test]
fn new_of_invalid_text_reports_the_reason() {
    let error = |text: &str| ConversationId::new(text).unwrap_err();
    assert_eq!(error(""), InvalidId::Empty);
    assert_eq!(error(&"x".repeat(129)), InvalidId::TooLong { len: 129 });
    assert_eq!(error(".."), InvalidId::DotAtEdge);
    assert_eq!(error("a."), InvalidId::DotAtEdge);
    assert_eq!(error("ab/c"), InvalidId::Character { character: '/', at: 2 });
    assert_eq!(error("ab\0"), InvalidId::Character { character: '\0', at: 2 });
    assert_eq!(error("aux.b"), InvalidId::Device { name: "aux".into() });
    assert!(error("a\nb").to_string().contains(r"'\n'"), "a control character is escaped");
}

#[test]
fn generate_returns_distinct_ids_of_22_characters() {
    let ids: HashSet<_> = (0..1000).map(|_| ConversationId::generate()).collect();
    assert_eq!(ids.len(), 1000);
    for id in ids {
        assert_eq!(id.as_str().len(), 22);
        assert_eq!(ConversationId::new(id.as_str()).unwrap(), id);
    }
}

#[test]
fn write_id_is_written_as_url_safe_base64() {
    // The expected text follows the definition of the encoding in RFC 4648, section 5.
    let id = WriteId::from_bytes([
        0xfb, 0xff, 0xbf, 0x00, 0x10, 0x83, 0x10, 0x51, 0x87, 0x20, 0x92, 0x8b, 0x30, 0xd3, 0x8f, 0x41,
    ]);
    assert_eq!(id.to_string(), "-_-_ABCDEFGHIJKLMNOPQQ");
    assert_eq!("-_-_ABCDEFGHIJKLMNOPQQ".parse(), Ok(id));
    for wrong in [
        "",
        "-_-_ABCDEFGHIJKLMNOPQ",
        "-_-_ABCDEFGHIJKLMNOPQQQ",
        "-_-_ABCDEFGHIJKLMNOPQR",
        "+/-_ABCDEFGHIJKLMNOPQQ",
    ] {
        assert!(wrong.parse::<WriteId>().is_err(), "{wrong}");
    }
}

#[test]
fn first_version_is_random_and_leaves_room_for_later_ones() {
    let versions: HashSet<_> = (0..100).map(|_| Version::first()).collect();
    assert_eq!(versions.len(), 100);
    assert!(versions.iter().all(|version| (1..1 << 40).contains(&version.get())));
}

proptest! {
    #[test]
    fn new_of_any_text_keeps_or_rejects_it(text in "\\PC{0,20}|[a-zA-Z0-9._~/\\\\:-]{0,20}") {
        if let Ok(id) = ConversationId::new(&text) {
            prop_assert_eq!(id.as_str(), &text);
            let path = std::path::Path::new("folder").join(format!("{id}.jsonl"));
            prop_assert_eq!(path.parent(), Some(std::path::Path::new("folder")));
        }
    }

    #[test]
    fn write_id_of_any_bytes_is_parsed_back(bytes: [u8; 16]) {
        let id = WriteId::from_bytes(bytes);
        let text = id.to_string();
        prop_assert_eq!(text.len(), 22);
        prop_assert_eq!(text.parse(), Ok(id));
        let json = serde_json::to_string(&id).unwrap();
        prop_assert_eq!(serde_json::from_str::<WriteId>(&json).unwrap(), id);
    }
}
