//! The frame of a line, which consists of a checksum and a length around a record. The frame reveals incomplete lines.
//! This module does no input or output.

use std::ops::Range;

/// The length of `{"sum":"xxxxxxxx","len":dddddddddd,"record":`. `}` and a line feed follow the record.
const PREFIX: usize = 44;
const SUM: Range<usize> = 8..16;
const LEN: Range<usize> = 24..34;
const LITERALS: [(usize, &[u8]); 3] = [(0, b"{\"sum\":\""), (16, b"\",\"len\":"), (34, b",\"record\":")];
/// The end of a line.
const END: &[u8] = b"}\n";

/// The maximum length of a line. The length of the record in the line must fit into ten digits.
pub(super) const LONGEST: usize = 9_999_999_999;

/// The reason why a line is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Whether the line may be the result of an interrupted write at the end of a file.
    pub(super) torn: bool,
    pub(super) problem: &'static str,
}

const SHORT: &str = "it is shorter than its stated length";
const FRAME: &str = "it does not have the frame of a line";

/// Returns an empty line, ready for a record to be appended.
pub(super) fn begin() -> Vec<u8> {
    vec![b' '; PREFIX]
}

/// Completes a line whose record has been appended.
pub(super) fn finish(mut line: Vec<u8>) -> Vec<u8> {
    let (prefix, record) = line.split_at_mut(PREFIX);
    for (at, literal) in LITERALS {
        prefix[at..at + literal.len()].copy_from_slice(literal);
    }
    prefix[SUM].copy_from_slice(format!("{:08x}", crc32fast::hash(record)).as_bytes());
    // Callers ensure that the length has at most ten digits.
    let len = format!("{:10}", record.len());
    prefix[LEN].copy_from_slice(&len.as_bytes()[..10]);
    line.extend_from_slice(END);
    line
}

/// Returns the record in a line. The line begins at offset `at` in its file. It includes its line feed, if it has one.
pub(super) fn record(line: &[u8], at: u64) -> Result<&[u8], Fault> {
    let (content, ended) = match line.strip_suffix(b"\n") {
        Some(content) => (content, true),
        None => (line, false),
    };
    let (torn, problem) = match whole(content) {
        Ok(record) if ended => return Ok(record),
        // The record is complete. Only the line feed is missing.
        Ok(_) => (true, "it does not end in a line feed"),
        Err(SHORT) if !ended => (true, "it is incomplete"),
        Err(_) if never_filled(line, at) => (true, "it has bytes that were never written"),
        Err(problem) => (false, problem),
    };
    Err(Fault { torn, problem })
}

/// Returns the beginning of the record in a line, of which only the beginning is given, and the length of the line.
/// Returns `None` if the line has no valid frame.
pub(super) fn beginning(line: &[u8]) -> Option<(&[u8], u64)> {
    let (prefix, record) = line.split_at_checked(PREFIX)?;
    Some((record, (PREFIX + len(&prefix[LEN])? + END.len()) as u64))
}

/// The smallest number of bytes that a disk writes at once.
const SECTOR: u64 = 512;

/// Returns whether the zero bytes in a line may result from a power failure. JSON contains no zero bytes. Space that
/// was allocated to the file but never filled contains only zero bytes. It consists of whole sectors, or of the part of
/// a sector that belongs to the line. Any other zero byte is damage.
fn never_filled(line: &[u8], at: u64) -> bool {
    let edge = |place: usize| place == 0 || place == line.len() || (at + place as u64).is_multiple_of(SECTOR);
    let mut found = false;
    let mut place = 0;
    while let Some(begin) = line[place..].iter().position(|byte| *byte == 0).map(|zero| place + zero) {
        let rest = &line[begin..];
        let end = begin + rest.iter().position(|byte| *byte != 0).unwrap_or(rest.len());
        if !edge(begin) || !edge(end) {
            return false;
        }
        found = true;
        place = end;
    }
    found
}

fn whole(content: &[u8]) -> Result<&[u8], &'static str> {
    for (at, literal) in LITERALS {
        let there = content.get(at..).unwrap_or_default();
        if !literal.starts_with(&there[..there.len().min(literal.len())]) {
            return Err(FRAME);
        }
    }
    let (prefix, rest) = content.split_at_checked(PREFIX).ok_or(SHORT)?;
    let (Some(sum), Some(len)) = (sum(&prefix[SUM]), len(&prefix[LEN])) else { return Err(FRAME) };
    match rest.len() {
        there if there <= len => return Err(SHORT),
        there if there > len + 1 => return Err("it is longer than its stated length"),
        _ => {}
    }
    let (record, close) = rest.split_at(len);
    if close != b"}" {
        return Err(FRAME);
    }
    if crc32fast::hash(record) != sum {
        return Err("its checksum does not match");
    }
    Ok(record)
}

/// Parses a checksum. Accepts only the form in which checksums are written, so that every changed byte is detected.
fn sum(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |sum, digit| match digit {
        b'0'..=b'9' => Some(sum << 4 | u32::from(digit - b'0')),
        b'a'..=b'f' => Some(sum << 4 | u32::from(digit - b'a' + 10)),
        _ => None,
    })
}

/// Parses a length. Accepts only the form in which lengths are written.
fn len(padded: &[u8]) -> Option<usize> {
    let digits = padded.trim_ascii_start();
    let padding = padded.len() - digits.len();
    if digits.starts_with(b"0") || padded[..padding].iter().any(|byte| *byte != b' ') {
        return None;
    }
    std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?.parse().ok()
}
