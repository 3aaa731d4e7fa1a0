//! A key or token that callers must present.

use std::fmt;

use constant_time_eq::constant_time_eq;

/// A static key or token. Never empty, never printed, compared in constant time.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

/// An empty secret would let everybody in who presents nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key is empty or has spaces around it; set a key of at least one visible character, or remove the setting")]
pub struct EmptySecret;

impl Secret {
    /// Takes a secret.
    ///
    /// # Errors
    ///
    /// [`EmptySecret`] if it is empty, blank, or begins or ends with white space: such a key cannot be presented.
    pub fn new(secret: impl Into<String>) -> Result<Self, EmptySecret> {
        let secret = secret.into();
        if secret.is_empty() || secret.trim().len() != secret.len() {
            return Err(EmptySecret);
        }
        Ok(Self(secret.into_bytes().into()))
    }

    /// Whether this is the secret. Takes the same time for every wrong one of the right length.
    pub fn matches(&self, presented: &[u8]) -> bool {
        constant_time_eq(&self.0, presented)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_or_blank_secret_is_refused() {
        for text in ["", " ", "\t\n", "key ", " key"] {
            assert_eq!(Secret::new(text).err(), Some(EmptySecret), "{text:?}");
        }
    }

    #[test]
    fn only_the_whole_secret_matches_and_it_is_never_printed() {
        let secret = Secret::new("swordfish").unwrap();
        assert!(secret.matches(b"swordfish"));
        for wrong in [&b""[..], b"swordfis", b"swordfish ", b"Swordfish"] {
            assert!(!secret.matches(wrong));
        }
        assert!(!format!("{secret:?}").contains("swordfish"));
    }
}
