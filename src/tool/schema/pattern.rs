//! Estimates the cost of a regular expression before the engine compiles it.

/// The cost of a regular expression.
pub(super) struct Weight {
    /// The approximate number of states that the regular expression engine will need.
    pub(super) states: usize,
    /// The number of times that `boon` will parse the pattern again to rewrite a class such as `\d`.
    pub(super) rewrites: usize,
}

/// Estimates the cost of a pattern. Returns `None` if the pattern uses look-around or back-references, which the engine
/// does not support.
///
/// The estimate is rough. If it is too low, the engine's own generous size limit still applies.
pub(super) fn weigh(pattern: &str) -> Option<Weight> {
    let mut rewrites = 0;
    // For each open group, `groups` contains the number of states of the finished atoms, with the innermost group last.
    // `atom` is the number of states of the atom that a quantifier would repeat.
    let mut groups = vec![0_usize];
    let mut atom = 0_usize;
    let mut rest = pattern.chars();
    while let Some(char) = rest.next() {
        let next = match char {
            '\\' => match rest.next() {
                Some('1'..='9' | 'k') => return None,
                Some('p' | 'P') => {
                    skip_braces(&mut rest);
                    200
                }
                Some('u' | 'U' | 'x') => {
                    skip_braces(&mut rest);
                    4
                }
                Some('d' | 'D' | 'w' | 'W' | 's' | 'S') => {
                    rewrites += 1;
                    10
                }
                _ => 2,
            },
            '[' => class(&mut rest, &mut rewrites),
            '(' => {
                if ["?=", "?!", "?<=", "?<!"].iter().any(|look| rest.as_str().starts_with(look)) {
                    return None;
                }
                close_atom(&mut groups, &mut atom);
                groups.push(0);
                continue;
            }
            ')' if groups.len() > 1 => {
                close_atom(&mut groups, &mut atom);
                atom = groups.pop().unwrap_or_default().max(1);
                continue;
            }
            '{' => {
                if let Some((bounds, after)) = rest.as_str().split_once('}')
                    && let Some(times) = repetitions(bounds)
                {
                    atom = atom.saturating_mul(times.max(1));
                    rest = after.chars();
                    continue;
                }
                1
            }
            '.' => 4,
            _ => 1,
        };
        close_atom(&mut groups, &mut atom);
        atom = next;
    }
    let states = groups.into_iter().fold(atom, usize::saturating_add);
    Some(Weight { states, rewrites })
}

fn close_atom(groups: &mut [usize], atom: &mut usize) {
    if let Some(group) = groups.last_mut() {
        *group = group.saturating_add(std::mem::take(atom));
    }
}

/// Skips the braces of an escape such as `\p{Greek}`.
fn skip_braces(rest: &mut std::str::Chars<'_>) {
    if let Some((_, after)) = rest.as_str().strip_prefix('{').and_then(|braced| braced.split_once('}')) {
        *rest = after.chars();
    }
}

/// Reads the rest of a character class after its opening bracket. Returns the number of states of the class.
fn class(rest: &mut std::str::Chars<'_>, rewrites: &mut usize) -> usize {
    let mut states = 4_usize;
    let mut depth = 1_usize;
    while let Some(char) = rest.next() {
        match char {
            '\\' => match rest.next() {
                Some('p' | 'P') => states += 200,
                Some('d' | 'D' | 'w' | 'W' | 's' | 'S') => {
                    *rewrites += 1;
                    states += 10;
                }
                _ => states += 1,
            },
            '[' => depth += 1,
            ']' if depth == 1 => break,
            ']' => depth -= 1,
            _ => states += 1,
        }
    }
    states
}

/// Returns the greatest number in the bounds `n`, `n,` or `n,m` of a repetition. Returns `None` if the text has another
/// form.
fn repetitions(bounds: &str) -> Option<usize> {
    let (least, most) = bounds.split_once(',').unwrap_or((bounds, ""));
    let least: usize = least.trim().parse().ok()?;
    if most.trim().is_empty() { Some(least) } else { most.trim().parse().ok() }
}
