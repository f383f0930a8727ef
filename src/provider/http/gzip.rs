//! Unpacks bodies of errors that are compressed with gzip.
//!
//! Requests allow no compression, but some proxies compress errors all the same, and the kind of an error depends on
//! its text. Such bodies are small, so this module is short and not fast. Sources: RFC 1951 (deflate) and RFC 1952
//! (gzip).

use std::collections::HashMap;

/// The order in which a block lists the lengths of the codes that its lengths have themselves.
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// The maximum number of blocks. A block may have no content, so the limit of the content does not limit the work.
const MAX_BLOCKS: usize = 1000;

/// The meanings of prefix codes. A one precedes the bits of each code, so that codes of all lengths differ.
type PrefixCodes = HashMap<usize, usize>;

/// Returns the content of a compressed body, up to about `limit` bytes. If the body is incomplete or damaged, returns
/// the content before that place, which may still explain the error. Returns `None` if nothing can be unpacked.
pub(super) fn unpacked(body: &[u8], limit: usize) -> Option<Vec<u8>> {
    // The flags are zero, because a body has none of the optional members of the header, such as a file's name.
    let data = body.strip_prefix(b"\x1f\x8b\x08\0")?.get(6..)?;
    let (mut bits, mut content) = (DeflateBitReader { data, at: 0 }, Vec::new());
    let _ = (0..MAX_BLOCKS).find(|_| bits.block(limit, &mut content) != Some(false));
    (!content.is_empty()).then_some(content)
}

/// Returns the code of each number that has a code of this length. Numbers with the length 0 have no code.
fn codes(lengths: &[usize]) -> PrefixCodes {
    let (mut codes, mut next) = (PrefixCodes::new(), 1);
    for length in 1..16 {
        next <<= 1;
        for number in (0..lengths.len()).filter(|number| lengths[*number] == length) {
            codes.insert(next, number);
            next += 1;
        }
    }
    codes
}

/// Reads bits, the least significant bit of each byte first.
struct DeflateBitReader<'a> {
    data: &'a [u8],
    /// The position of the next bit.
    at: usize,
}

impl DeflateBitReader<'_> {
    /// Unpacks one block, and returns whether it is the last one. Returns `None` if the data is incomplete or invalid,
    /// or if the content reaches the limit.
    fn block(&mut self, limit: usize, content: &mut Vec<u8>) -> Option<bool> {
        let is_last = self.take(1)? == 1;
        let (count, lengths) = match self.take(2)? {
            0 => {
                self.at = self.at.next_multiple_of(8);
                // The complement of the length follows the length.
                for _ in 0..self.take(32)? & 0xffff {
                    content.push(u8::try_from(self.take(8)?).ok()?);
                }
                return Some(is_last);
            }
            1 => (288, [vec![8; 144], vec![9; 112], vec![7; 24], vec![8; 8], vec![5; 30]].concat()),
            2 => self.lengths()?,
            _ => return None,
        };
        let (literals, distances) = (codes(&lengths[..count]), codes(&lengths[count..]));
        while content.len() < limit {
            match self.code(&literals)? {
                256 => return Some(is_last),
                literal @ ..256 => content.push(u8::try_from(literal).ok()?),
                code => {
                    let length = if code == 285 { 258 } else { 3 + self.number(code - 257, 4)? };
                    let code = self.code(&distances)?;
                    let start = content.len().checked_sub(1 + self.number(code, 2)?)?;
                    // The copy may overlap with the part that is copied.
                    (start..start + length).for_each(|at| content.push(content[at]));
                }
            }
        }
        None
    }

    /// Reads the lengths of a block's codes. The first ones, whose number is returned too, are for literals, and the
    /// others for distances.
    fn lengths(&mut self) -> Option<(usize, Vec<usize>)> {
        let (literals, distances, count) = (self.take(5)? + 257, self.take(5)? + 1, self.take(4)? + 4);
        let mut lengths = vec![0; ORDER.len()];
        for place in &ORDER[..count] {
            lengths[*place] = self.take(3)?;
        }
        let codes = codes(&std::mem::take(&mut lengths));
        while lengths.len() < literals + distances {
            let (length, count) = match self.code(&codes)? {
                16 => (*lengths.last()?, 3 + self.take(2)?),
                17 => (0, 3 + self.take(3)?),
                18 => (0, 11 + self.take(7)?),
                length => (length, 1),
            };
            lengths.resize(lengths.len() + count, length);
        }
        Some((literals, lengths))
    }

    /// Reads a length or a distance, less the smallest one. The bits that follow its code are a part of it. `group`
    /// codes in a row are followed by equally many bits, of which there are at most 13.
    fn number(&mut self, code: usize, group: usize) -> Option<usize> {
        if code < group {
            return Some(code);
        }
        let count = (code / group - 1).min(13);
        Some(((group + code % group) << count) + self.take(count)?)
    }

    /// Reads a code, and returns its meaning.
    fn code(&mut self, codes: &PrefixCodes) -> Option<usize> {
        let mut code = 1;
        (0..15).find_map(|_| {
            code = code << 1 | self.take(1)?;
            codes.get(&code).copied()
        })
    }

    fn take(&mut self, count: usize) -> Option<usize> {
        (0..count).try_fold(0, |number, place| {
            let bit = self.data.get(self.at / 8)? >> (self.at % 8) & 1;
            self.at += 1;
            Some(number | usize::from(bit) << place)
        })
    }
}
