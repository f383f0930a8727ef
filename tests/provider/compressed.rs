//! Errors whose body is compressed, although the request allows no compression.

use base64::{Engine, engine::general_purpose::STANDARD};
use omni_agent::provider::{ProviderError, ProviderErrorKind};

use crate::{server::Reply, wires::Wire};

/// `{"error":"prompt is too long"}`, in a block with a fixed code.
const FIXED: &str = "H4sIAAAAAAAA/6tWSi0qyi9SslIqKMrPLShRyCxWKMnPV8jJz0tXqgUAsFc63R4AAAA=";
/// The same text in a block that is not compressed.
const STORED: &str = "H4sIAAAAAAAA/wEeAOH/eyJlcnJvciI6InByb21wdCBpcyB0b28gbG9uZyJ9sFc63R4AAAA=";
/// A longer error of Anthropic, in a block that contains its codes.
const DYNAMIC: &str = "H4sIAAAAAAAA/22QwU7DMBBEf2WUcxUlpeKQAxfEDyAunCo33iSmsTd4t4Go6r9jR20FEj6NZ8fPY58LXSYqGhQUI8dicxMNzveRC7MZnd1H+jyR6P4e9SRi+jUzRfaTwgmUGSOHvsG23j3Uj8k4UhA8YVvlBW++nT/54pIIN6SzGZJ2+6qun9/NobXU9YP7OI4+8JQvs6TGjTn2NhBaDjNFMeo4YDCCelvtcC0kJV7J80x3A13qB00HD9S7EFzowd1q/CZtwBGiJioMAn39GZZ4SXq5MdPsFFQ2MMFCGJZXXHr+mMwsZRElj+vX5Fh2jappB7Lo3JiK/dOiLC4/DymJo5gBAAA=";
/// The longer error in the format of zlib, which HTTP calls `deflate`.
const ZLIB: &str = "eNptkMFOwzAQRH9llHMVJaXikAMXxA8gLpwqN94kprE3eLeBqOq/Y0dtBRI+jWfHz2OfC10mKhoUFCPHYnMTDc73kQuzGZ3dR/o8kej+HvUkYvo1M0X2k8IJlBkjh77Btt491I/JOFIQPGFb5QVvvp0/+eKSCDeksxmSdvuqrp/fzaG11PWD+ziOPvCUL7Okxo059jYQWg4zRTHqOGAwgnpb7XAtJCVeyfNMdwNd6gdNBw/UuxBc6MHdavwmbcARoiYqDAJ9/RmWeEl6uTHT7BRUNjDBQhiWV1x6/pjMLGURJY/r1+RYdo2qaQey6NyYiv3ToiwuPxSwjXs=";

fn bytes(base64: &str) -> Vec<u8> {
    STANDARD.decode(base64).unwrap()
}

/// Returns the error of a service that replies with this status, coding and body.
async fn error(wire: Wire, status: u16, coding: &str, body: Vec<u8>) -> ProviderError {
    let reply = Reply::new(status).header("content-type", "application/json");
    let reply = if coding.is_empty() { reply } else { reply.header("content-encoding", coding) };
    wire.answer_to(reply.piece(body)).await.unwrap_err()
}

#[tokio::test]
async fn gzipped_error_about_a_long_prompt_is_context_too_long_in_every_format() {
    for wire in Wire::ALL {
        for status in [400, 413] {
            for (coding, body) in
                [("gzip", FIXED), ("GZIP", STORED), ("x-gzip", FIXED), ("", FIXED), ("gzip", DYNAMIC)]
            {
                let error = error(wire, status, coding, bytes(body)).await;
                assert_eq!(
                    error.kind,
                    ProviderErrorKind::ContextTooLong,
                    "{wire:?} {status} {coding} {error}"
                );
                assert!(error.message.starts_with("prompt is too long"), "{error}");
                assert!(error.body.is_some_and(|body| body.contains("prompt is too long")));
            }
        }
    }
}

#[tokio::test]
async fn gzipped_error_keeps_the_meaning_of_its_status() {
    for (status, kind) in [(401, ProviderErrorKind::Auth), (429, ProviderErrorKind::RateLimit)] {
        assert_eq!(error(Wire::Chat, status, "gzip", bytes(FIXED)).await.kind, kind);
    }
}

#[tokio::test]
async fn part_of_a_gzipped_error_is_read_as_far_as_it_arrived() {
    let mut body = bytes(DYNAMIC);
    body.truncate(200);
    let error = error(Wire::Messages, 400, "gzip", body).await;
    assert_eq!(error.kind, ProviderErrorKind::ContextTooLong, "{error}");
}

#[tokio::test]
async fn compressed_error_that_cannot_be_read_is_reported_with_its_coding() {
    let mut broken = bytes(DYNAMIC);
    broken[10..].fill(0xff);
    for (coding, body) in [
        ("br", bytes(FIXED)),
        ("zstd", bytes(FIXED)),
        ("gzip, gzip", bytes(FIXED)),
        ("deflate", bytes(ZLIB)),
        ("gzip", broken),
    ] {
        let error = error(Wire::Chat, 400, coding, body).await;
        assert_eq!(
            (error.kind, error.body.as_deref()),
            (ProviderErrorKind::InvalidRequest, None),
            "{coding}"
        );
        assert!(error.message.contains(&format!("compressed as {coding:?}")), "{error}");
    }
}

#[tokio::test]
async fn gzipped_error_with_endless_empty_blocks_is_not_unpacked() {
    // Four empty blocks with the fixed code, of 10 bits each, and then a block of text.
    let empty = [0x02, 0x08, 0x20, 0x80, 0x00];
    let packed = |blocks: usize| {
        let stored = bytes(STORED);
        [&stored[..10], &empty.repeat(blocks / 4), &stored[10..]].concat()
    };
    let kinds = async |blocks| error(Wire::Chat, 400, "gzip", packed(blocks)).await.kind;
    assert_eq!(kinds(400).await, ProviderErrorKind::ContextTooLong);
    assert_eq!(kinds(4000).await, ProviderErrorKind::InvalidRequest);
}

#[tokio::test]
async fn gzipped_error_of_any_damage_ends_without_a_panic() {
    for whole in [FIXED, DYNAMIC].map(bytes) {
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            error(Wire::Chat, 400, "gzip", damaged).await;
        }
    }
}
