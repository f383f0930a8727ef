//! Settings of a URL that the driver does not support or does not report.

use std::ops::Range;

use tokio_postgres::{Config, Error};

/// The settings of a URL, or of a text with pairs of keys and values.
pub(super) struct Settings {
    pub(super) config: Config,
    /// Whether the text sets `keepalives_idle`. The driver does not report this: if the setting is missing, the driver
    /// returns its default.
    pub(super) sets_idle: bool,
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        let mut url = url.to_owned();
        let mut sets_idle = false;
        // The settings are visited in reverse order, so that a replacement does not change the ranges of the settings
        // before it.
        for (key, value) in named(&url).into_iter().rev() {
            match (&url[key], &url[value.clone()]) {
                // These are libpq's names for modes that check the certificate. This store always checks the
                // certificate.
                ("sslmode", "verify-full" | "verify-ca" | "'verify-full'" | "'verify-ca'") => {
                    url.replace_range(value, "require");
                }
                ("keepalives_idle", _) => sets_idle = true,
                _ => {}
            }
        }
        Ok(Self { config: url.parse()?, sets_idle })
    }
}

/// Returns the ranges of each key and its value, as written in the text. If the driver rejects the text, the result is
/// arbitrary.
fn named(url: &str) -> Vec<(Range<usize>, Range<usize>)> {
    if ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        in_query(url)
    } else {
        in_pairs(url)
    }
}

/// Finds the settings after the question mark of a URL. The search begins after the password, because a password may
/// contain a question mark too.
fn in_query(url: &str) -> Vec<(Range<usize>, Range<usize>)> {
    let behind_password = url.find('@').unwrap_or(0);
    let Some(question) = url[behind_password..].find('?') else { return Vec::new() };
    let mut named = Vec::new();
    let mut begin = behind_password + question + 1;
    for part in url[begin..].split('&') {
        let end = begin + part.len();
        if let Some(equals) = part.find('=') {
            named.push((begin..begin + equals, begin + equals + 1..end));
        }
        begin = end + 1;
    }
    named
}

/// Finds settings of the form `key = value`. Values with spaces are quoted, and a backslash escapes the next character.
fn in_pairs(text: &str) -> Vec<(Range<usize>, Range<usize>)> {
    let end_of = |begin: usize, is_end: &dyn Fn(char) -> bool| {
        text[begin..].find(is_end).map_or(text.len(), |length| begin + length)
    };
    let after_space = |begin| end_of(begin, &|next| !next.is_whitespace());
    let mut named = Vec::new();
    let mut begin = after_space(0);
    while begin < text.len() {
        let key = begin..end_of(begin, &|next| next.is_whitespace() || next == '=');
        let equals = after_space(key.end);
        if !text[equals..].starts_with('=') {
            break;
        }
        let first = after_space(equals + 1);
        let value = first..end_of_value(text, first);
        begin = after_space(value.end);
        named.push((key, value));
    }
    named
}

fn end_of_value(text: &str, begin: usize) -> usize {
    let is_quoted = text[begin..].starts_with('\'');
    let mut rest = text[begin..].char_indices().skip(usize::from(is_quoted));
    while let Some((at, next)) = rest.next() {
        match next {
            '\\' => drop(rest.next()),
            '\'' if is_quoted => return begin + at + 1,
            next if !is_quoted && next.is_whitespace() => return begin + at,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_postgres::config::SslMode;

    use super::*;

    #[test]
    fn sslmodes_that_check_the_certificate_become_require() {
        for url in [
            "postgres://ada@host/db?sslmode=verify-full",
            "postgresql://host?application_name=a&sslmode=verify-ca&connect_timeout=3",
            "postgres://ada:who?@host/db?sslmode=verify-full",
            "host=a sslmode=verify-full user=ada",
            "sslmode = 'verify-ca' host = a",
        ] {
            let settings = Settings::parse(url).unwrap();
            assert_eq!(settings.config.get_ssl_mode(), SslMode::Require, "{url}");
        }
    }

    #[test]
    fn password_that_looks_like_a_setting_is_kept() {
        let password = "sslmode=verify-full";
        for url in [
            "postgres://ada:sslmode=verify-full@host/db",
            "postgres://ada:sslmode=verify-full@host/db?sslmode=verify-ca",
            "host=a password=sslmode=verify-full",
            "password='sslmode=verify-full' host=a sslmode=verify-full",
        ] {
            let settings = Settings::parse(url).unwrap();
            assert_eq!(settings.config.get_password(), Some(password.as_bytes()), "{url}");
        }
        let spaced =
            Settings::parse(r"password='it\'s sslmode=verify-full keepalives_idle=5' host=a").unwrap();
        assert_eq!(spaced.config.get_password(), Some(&b"it's sslmode=verify-full keepalives_idle=5"[..]));
        assert!(!spaced.sets_idle);
    }

    #[test]
    fn keepalives_idle_is_detected_where_it_is_set() {
        for (url, sets) in [
            ("postgres://host/db?keepalives_idle=7200", true),
            ("postgres://keepalives_idle=7:keepalives_idle=7@host/db", false),
            ("host=a keepalives_idle = 7200", true),
            ("host=keepalives_idle user=b", false),
            ("", false),
        ] {
            let settings = Settings::parse(url).unwrap();
            assert_eq!(settings.sets_idle, sets, "{url}");
            assert_eq!(settings.config.get_keepalives_idle(), Duration::from_hours(2), "{url}");
        }
    }

    #[test]
    fn invalid_urls_never_panic() {
        for url in [
            "host",
            "host=",
            "host='a",
            "a=b\\",
            "=",
            " = ",
            "é=é é",
            "postgres://é?é=é&=&&=é@é?",
            "host = 'ö\\",
        ] {
            let _ = Settings::parse(url);
            let _ = Settings::parse(&format!("postgres://{url}"));
        }
    }
}
