//! A secret among the settings.

use std::fmt;

use figment::value::Value;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// A secret setting: never printed.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SecretSetting(pub String);

impl fmt::Debug for SecretSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretSetting(redacted)")
    }
}

/// By hand: what serde says of a value of the wrong type shows the value.
impl<'de> Deserialize<'de> for SecretSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match <Value as Deserialize>::deserialize(deserializer) {
            Ok(Value::String(_, text)) => Ok(Self(text)),
            _ => Err(D::Error::custom("a secret must be text; put it in quotes")),
        }
    }
}
