//! Values of single sampling fields.

use std::fmt;

use mesh_proto::{sampling::MAX_LOGIT_BIAS, v1::LogitBias};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

use crate::{generate::MAX_STOP_STRINGS, http::field::Skip};

/// Any 64-bit integer, signed or not; negative ones keep their bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Integer;
        impl Visitor<'_> for Integer {
            type Value = Seed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a 64-bit integer")
            }
            fn visit_i64<E>(self, value: i64) -> Result<Seed, E> {
                Ok(Seed(value.cast_unsigned()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Seed, E> {
                Ok(Seed(value))
            }
        }
        deserializer.deserialize_any(Integer)
    }
}

/// A stop string or several; one more than the limit is kept, so that the check can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stop(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = Stop;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of strings")
            }
            fn visit_str<E>(self, text: &str) -> Result<Stop, E> {
                Ok(Stop(vec![text.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Stop, A::Error> {
                let mut strings = Vec::new();
                while strings.len() <= MAX_STOP_STRINGS {
                    match seq.next_element()? {
                        Some(string) => strings.push(string),
                        None => return Ok(Stop(strings)),
                    }
                }
                while seq.next_element::<Skip>()?.is_some() {}
                Ok(Stop(strings))
            }
        }
        deserializer.deserialize_any(Strings)
    }
}

/// A map from token ids, written as strings, to biases.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bias(pub(crate) Vec<LogitBias>);

impl<'de> Deserialize<'de> for Bias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Bias;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from token ids to numbers")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Bias, A::Error> {
                let mut biases = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if biases.len() == MAX_LOGIT_BIAS {
                        return Err(A::Error::custom(format_args!(
                            "more than {MAX_LOGIT_BIAS} entries; use fewer"
                        )));
                    }
                    let token = key
                        .parse()
                        .map_err(|_| A::Error::custom("a key is not a token id; use decimal token ids"))?;
                    biases.push(LogitBias {
                        token,
                        bias: map.next_value::<f64>()? as f32,
                    });
                }
                Ok(Bias(biases))
            }
        }
        deserializer.deserialize_map(Map)
    }
}
