//! Shapes of JSON values in a request body. Each reads a value without keeping more of it than is used.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

mod scalar;

pub(super) use scalar::{Bias, Seed, Stop};

/// A value that is read and forgotten: its field is known and does not matter here.
///
/// Not [`serde::de::IgnoredAny`], which `serde_ignored` would report as an unknown field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Skip;

impl<'de> Deserialize<'de> for Skip {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Shape::deserialize(deserializer).map(|_| Self)
    }
}

/// What kind of value a field has, for fields that are accepted only when they ask for nothing.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    /// `null` inside another value; a field that is null counts as absent.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// Any number.
    Number(f64),
    /// A string.
    Text(String),
    /// An array, with its strings; other elements are empty strings.
    Array(Vec<String>),
    /// An object, with its `type` if it has one.
    Object(Option<String>),
}

/// Elements of a [`Shape::Array`] that are kept: more than the longest array that asks for nothing.
const KEPT_ELEMENTS: usize = 8;

impl Shape {
    /// `false`, `0`, `""`, `[]`: asks for nothing.
    pub(super) fn is_nothing(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(value) => !value,
            Self::Number(value) => *value == 0.0,
            Self::Text(text) => text.is_empty(),
            Self::Array(elements) => elements.is_empty(),
            Self::Object(_) => false,
        }
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_unit<E>(self) -> Result<Shape, E> {
                Ok(Shape::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Shape, E> {
                Ok(Shape::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Shape, E> {
                Ok(Shape::Number(value as f64))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Shape, E> {
                Ok(Shape::Number(value as f64))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Shape, E> {
                Ok(Shape::Number(value))
            }
            fn visit_str<E>(self, text: &str) -> Result<Shape, E> {
                Ok(Shape::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = seq.next_element::<Shape>()? {
                    if elements.len() < KEPT_ELEMENTS {
                        elements.push(if let Shape::Text(text) = element {
                            text
                        } else {
                            String::new()
                        });
                    }
                }
                Ok(Shape::Array(elements))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
                let mut kind = None;
                while let Some(key) = map.next_key::<String>()? {
                    let value = map.next_value::<Shape>()?;
                    if let ("type", Shape::Text(text)) = (key.as_str(), value) {
                        kind = Some(text);
                    }
                }
                Ok(Shape::Object(kind))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// A struct that is written as a JSON object and nothing else (serde would also take an array, by position).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Map<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(Map(PhantomData)).map(Self)
    }
}

/// An array of at most `MAX` elements: small JSON must not become large memory.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bounded<T, const MAX: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seq<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Seq<T, MAX> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
                let mut elements = Vec::new();
                while elements.len() < MAX {
                    match seq.next_element()? {
                        Some(element) => elements.push(element),
                        None => return Ok(elements),
                    }
                }
                match seq.next_element::<Skip>()? {
                    Some(_) => Err(Error::custom(format_args!("more than {MAX} elements; use fewer"))),
                    None => Ok(elements),
                }
            }
        }
        deserializer.deserialize_seq(Seq::<T, MAX>(PhantomData)).map(Self)
    }
}
