//! The frame of a line, which consists of a checksum and a length around a record. The frame reveals incomplete lines.
//! This module does no input or output.

use std::ops::Range;

/// The length of `{"sum":"xxxxxxxx","len":dddddddddd,"record":`. `}` and a line feed follow the record.
pub(super) const PREFIX: usize = 44;
const SUM: Range<usize> = 8..16;
const LEN: Range<usize> = 24..34;
const LITERALS: [(usize, &[u8]); 3] = [(0, b"{\"sum\":\""), (16, b"\",\"len\":"), (34, b",\"record\":")];

/// The maximum length of a line. The length of the record in the line must fit into ten digits.
pub(super) const LONGEST: usize = 9_999_999_999;

/// The reason why a line is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Whether the line may be the result of an interrupted write at the end of a log.
    pub(super) torn: bool,
    pub(super) problem: &'static str,
}

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
    line.extend_from_slice(b"}\n");
    line
}

/// Returns the record in a line. The line begins at offset `at` in its file. It includes its line feed, if it has one.
pub(super) fn record(line: &[u8], at: u64) -> Result<&[u8], Fault> {
    let (content, ended) = match line.strip_suffix(b"\n") {
        Some(content) => (content, true),
        None => (line, false),
    };
    let found = whole(content);
    match found {
        Ok(record) if ended => Ok(record),
        // The record is complete. Only the line feed is missing.
        Ok(_) => Err(Fault { torn: true, problem: "it does not end in a line feed" }),
        Err(Flaw::Short) if !ended => Err(Fault { torn: true, problem: "it is incomplete" }),
        Err(_) if never_filled(line, at) => {
            Err(Fault { torn: true, problem: "it has bytes that were never written" })
        }
        Err(flaw) => Err(Fault { torn: false, problem: flaw.problem() }),
    }
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

/// Returns the length of the line that begins here, as stated in the line's frame. The length includes the line feed.
pub(super) fn stated_len(line: &[u8]) -> Option<usize> {
    len(line.get(LEN)?).map(|len| PREFIX + len + 2)
}

#[derive(Clone, Copy)]
enum Flaw {
    Short,
    Long,
    Frame,
    Sum,
}

impl Flaw {
    fn problem(self) -> &'static str {
        match self {
            Self::Short => "it is shorter than its stated length",
            Self::Long => "it is longer than its stated length",
            Self::Frame => "it does not have the frame of a line",
            Self::Sum => "its checksum does not match",
        }
    }
}

fn whole(content: &[u8]) -> Result<&[u8], Flaw> {
    for (at, literal) in LITERALS {
        let there = content.get(at..).unwrap_or_default();
        let there = &there[..there.len().min(literal.len())];
        if *there != literal[..there.len()] {
            return Err(Flaw::Frame);
        }
    }
    let Some((prefix, rest)) = content.split_at_checked(PREFIX) else {
        return Err(Flaw::Short);
    };
    let (Some(sum), Some(len)) = (sum(&prefix[SUM]), len(&prefix[LEN])) else {
        return Err(Flaw::Frame);
    };
    match rest.len() {
        there if there <= len => return Err(Flaw::Short),
        there if there > len + 1 => return Err(Flaw::Long),
        _ => {}
    }
    let (record, close) = rest.split_at(len);
    if close != b"}" {
        return Err(Flaw::Frame);
    }
    if crc32fast::hash(record) != sum {
        return Err(Flaw::Sum);
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
