//! The one rule for words, by which all stores index and find texts.
//!
//! A text is brought into one form: compatibility forms become the letters for which they stand (NFKC), case is folded
//! in full, and accented letters become a letter with marks (NFD). Marks after Latin, Greek and Cyrillic letters are
//! removed. Marks of other scripts stay with their letter, because there they change the word.
//!
//! A word is a run of letters, digits and marks. A run in a script without spaces contains several words, which only a
//! dictionary could tell apart. Such a run becomes overlapping pairs of letters instead: `今天气` becomes `今天` and `天气`.
//! A query becomes pairs in the same way, and they have to follow each other. So any two letters or more are found.
//!
//! An index contains the number of the rule, [`RULE`]. If the rule changes, its number changes, and the indexes are built
//! anew.

use std::ops::Range;

use icu_casemap::CaseMapper;
use icu_normalizer::{ComposingNormalizer, DecomposingNormalizer};
use icu_properties::{
    CodePointMapData,
    props::{GeneralCategory, GeneralCategoryGroup, Script},
};

/// The number of the rule.
#[cfg_attr(
    not(any(test, feature = "sqlite", feature = "postgres")),
    expect(dead_code, reason = "only databases read it")
)]
pub(super) const RULE: i64 = 1;
/// The maximum length of the indexed part of a text in bytes.
const LONGEST_TEXT: usize = 256 * 1024;
/// The maximum length of all words of a text in bytes. A text reaches it only if its letters stand for several others.
const LONGEST_LIST: usize = 1_000_000;
/// The maximum length of a word in bytes. The rest of a longer word is ignored.
const LONGEST_WORD: usize = 512;
/// The maximum length of one letter with its marks in bytes.
const LONGEST_LETTER: usize = 64;

/// A word of a text, or a pair of letters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SearchWord {
    /// The word in the form in which words are compared.
    pub(super) text: String,
    /// The place of the word in the text.
    pub(super) range: Range<usize>,
    /// Whether nothing but a change of the script lies between the previous word and this one.
    pub(super) joins: bool,
}

/// Returns the words of a text in their order.
pub(super) fn words(text: &str) -> Vec<SearchWord> {
    let text = &text[..text.floor_char_boundary(LONGEST_TEXT)];
    let mut reader = WordReader::default();
    let mut at = 0;
    for part in text.split_inclusive(char::is_whitespace) {
        if part.is_ascii() {
            for (place, letter) in (at..).zip(part.chars()) {
                reader.read(letter.to_ascii_lowercase(), &(place..place + 1));
            }
        } else if normal(part) == part {
            for (index, letter) in part.char_indices() {
                reader.read(letter, &(at + index..at + index + letter.len_utf8()));
            }
        } else {
            // The places of the letters in the text are known if each letter is brought into the form alone. Its marks
            // are part of it, because their order matters.
            let mut rest = part;
            while let Some(first) = rest.chars().next() {
                let marks = rest[first.len_utf8()..]
                    .find(|c| !is_mark(c))
                    .map_or(rest.len(), |end| end + first.len_utf8());
                let (letter, after) = rest.split_at(marks);
                let start = at + part.len() - rest.len();
                normal(letter).chars().for_each(|c| reader.read(c, &(start..start + letter.len())));
                rest = after;
            }
        }
        at += part.len();
    }
    reader.end_run();
    reader.words
}

/// Returns the words of a text, each between two spaces.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) fn spaced(text: &str) -> String {
    words(text).iter().fold(" ".to_owned(), |all, word| all + &word.text + " ")
}

fn normal(text: &str) -> String {
    let composed = ComposingNormalizer::new_nfkc().normalize(text);
    let folded = CaseMapper::new().fold_string(&composed);
    DecomposingNormalizer::new_nfd().normalize(&folded).into_owned()
}

fn is_mark(c: char) -> bool {
    GeneralCategoryGroup::Mark.contains(CodePointMapData::<GeneralCategory>::new().get(c))
}

/// A group of scripts. A word ends where the group changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScriptGroup {
    /// Scripts with spaces between words, whose marks are removed.
    Plain,
    /// Other scripts with spaces between words.
    Marked,
    /// A script without spaces.
    Unspaced(Script),
}

impl ScriptGroup {
    fn of(letter: char) -> Self {
        match CodePointMapData::<Script>::new().get(letter) {
            _ if letter == 'ー' => Self::Unspaced(Script::Hiragana),
            Script::Hiragana | Script::Katakana => Self::Unspaced(Script::Hiragana),
            script @ (Script::Han | Script::Thai | Script::Lao | Script::Khmer | Script::Myanmar) => {
                Self::Unspaced(script)
            }
            Script::Latin | Script::Greek | Script::Cyrillic => Self::Plain,
            _ => Self::Marked,
        }
    }
}

/// Collects the words of a text.
#[derive(Default)]
struct WordReader {
    words: Vec<SearchWord>,
    /// The length of all words in bytes.
    length: usize,
    /// The run in progress, in the form in which words are compared.
    run: String,
    /// The letters of the run: their places in `run` and in the text.
    letters: Vec<(usize, Range<usize>)>,
    /// The group of the last letter.
    group: Option<ScriptGroup>,
    /// Whether nothing lies between the previous run and the run in progress.
    joins: bool,
}

impl WordReader {
    /// Reads the next letter or other character, whose form is `c` and which stands at this place of the text.
    fn read(&mut self, c: char, place: &Range<usize>) {
        let category = if c.is_ascii_alphanumeric() {
            GeneralCategory::LowercaseLetter
        } else {
            CodePointMapData::<GeneralCategory>::new().get(c)
        };
        if GeneralCategoryGroup::Letter.union(GeneralCategoryGroup::Number).contains(category) {
            let group = if c.is_ascii() { ScriptGroup::Plain } else { ScriptGroup::of(c) };
            let is_unspaced = |group: ScriptGroup| matches!(group, ScriptGroup::Unspaced(_));
            if let Some(last) = self.group
                && last != group
                && (is_unspaced(last) || is_unspaced(group))
            {
                self.end_run();
                self.joins = true;
            }
            self.group = Some(group);
            self.letters.push((self.run.len(), place.clone()));
            if is_unspaced(group) || self.run.len() < LONGEST_WORD {
                self.run.push(c);
            }
        } else if GeneralCategoryGroup::Mark.contains(category) {
            if let Some((start, letter)) = self.letters.last_mut() {
                letter.end = place.end;
                let is_short = self.run.len() - *start < LONGEST_LETTER;
                if self.group == Some(ScriptGroup::Marked) && is_short && self.run.len() < LONGEST_WORD
                    || matches!(self.group, Some(ScriptGroup::Unspaced(_))) && is_short
                {
                    self.run.push(c);
                }
            }
        } else if category != GeneralCategory::Format || c == '\u{200b}' {
            // Other format characters, such as a soft hyphen, are invisible inside a word.
            self.end_run();
        }
    }

    /// Ends the run in progress, which becomes a word or pairs of letters.
    fn end_run(&mut self) {
        let (run, letters) = (std::mem::take(&mut self.run), std::mem::take(&mut self.letters));
        let is_unspaced = matches!(self.group.take(), Some(ScriptGroup::Unspaced(_)));
        let mut joins = std::mem::take(&mut self.joins);
        let size = if is_unspaced { letters.len().min(2) } else { letters.len() };
        // Without letters, the size of a window would be 0.
        for (index, window) in letters.windows(size.max(1)).enumerate() {
            let (first, last) = (&window[0], &window[window.len() - 1]);
            let end = letters.get(index + size).map_or(run.len(), |next| next.0);
            self.add(&run[first.0..end], first.1.start..last.1.end, joins);
            joins = true;
        }
    }

    fn add(&mut self, word: &str, range: Range<usize>, joins: bool) {
        self.length += word.len() + 1;
        if self.length <= LONGEST_LIST {
            self.words.push(SearchWord { text: word.to_owned(), range, joins });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::digest::ContentHasher;

    /// If this test fails after an update of the Unicode data, raise `RULE`, and then change the value.
    #[test]
    fn words_of_all_letters_are_those_of_the_rule_with_this_number() {
        let mut digest = ContentHasher::default();
        let planes = ('\0'..='\u{1ffff}').chain('\u{20000}'..='\u{200ff}').chain('\u{e0000}'..='\u{e01ff}');
        for letter in planes {
            for word in words(&format!("a{letter}b {letter}")) {
                digest.part(word.text.as_bytes());
            }
        }
        assert_eq!((RULE, digest.value()), (1, 151_594_123_371_089_707_382_240_203_998_461_049_169));
    }

    fn split(text: &str) -> Vec<(String, &str)> {
        words(text).into_iter().map(|word| (word.text, &text[word.range])).collect()
    }

    #[test]
    fn words_have_their_places_in_the_text() {
        let list = |words: &[(&str, &'static str)]| -> Vec<(String, &'static str)> {
            words.iter().map(|(word, place)| ((*word).to_owned(), *place)).collect()
        };
        assert_eq!(split("Über ﬁnal"), list(&[("uber", "Über"), ("final", "ﬁnal")]));
        assert_eq!(split("e\u{301}tude, 2nd"), list(&[("etude", "e\u{301}tude"), ("2nd", "2nd")]));
        assert_eq!(split("今天气"), list(&[("今天", "今天"), ("天气", "天气")]));
        assert_eq!(split("a水b"), list(&[("a", "a"), ("水", "水"), ("b", "b")]));
        assert_eq!(split("㍿"), list(&[("株式", "㍿"), ("式会", "㍿"), ("会社", "㍿")]));
        assert_eq!(split("\u{301} - \u{200d}"), []);
    }

    #[test]
    fn words_of_any_text_are_bounded_and_their_places_are_in_the_text() {
        for text in [
            "ﷺ ".repeat(100_000),
            "가".repeat(100_000),
            "a".repeat(300_000),
            "ก\u{e48}".repeat(90_000),
            "ក\u{17b6}\u{17b6}".repeat(9_000),
            format!("ก{}", "\u{e48}".repeat(9_000)),
        ] {
            let words = words(&text);
            assert!(!words.is_empty());
            assert!(words.iter().map(|word| word.text.len() + 1).sum::<usize>() <= LONGEST_LIST);
            assert!(words.iter().all(|word| word.text.len() <= LONGEST_WORD + 4));
            assert!(words.iter().all(|word| text.get(word.range.clone()).is_some()));
            assert!(words.last().unwrap().range.end <= LONGEST_TEXT);
        }
    }

    #[cfg(feature = "test-util")]
    #[test]
    fn cases_of_the_suite_hold_for_the_rule() {
        let wrong: Vec<_> = crate::store::custom::conformance::cases()
            .into_iter()
            .filter(|case| case.query.parse::<crate::store::Query>().unwrap().is_in(&case.text) != case.found)
            .map(|case| (case.text, case.query, case.found))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
