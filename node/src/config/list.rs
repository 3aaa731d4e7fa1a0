//! A list among the settings: an array in the file, words between commas in a variable.

use std::{fmt, marker::PhantomData, str::FromStr};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
};

/// Texts that were checked; printed as they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<T> {
    texts: Vec<String>,
    checked: Vec<T>,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self {
            texts: Vec::new(),
            checked: Vec::new(),
        }
    }
}

impl<T: FromStr> Listed<T> {
    /// Checks each text.
    ///
    /// # Errors
    ///
    /// That of the first that is wrong.
    pub fn new(texts: Vec<String>) -> Result<Self, T::Err> {
        let checked = texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        Ok(Self { texts, checked })
    }
}

impl<T> Listed<T> {
    /// Nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.checked.is_empty()
    }
}

impl<T: Clone> Listed<T> {
    /// What is listed.
    pub fn to_vec(&self) -> Vec<T> {
        self.checked.clone()
    }
}

impl<T> Serialize for Listed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.texts.serialize(serializer)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Listed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = deserializer.deserialize_any(Texts(PhantomData::<T>))?;
        Self::new(texts).map_err(D::Error::custom)
    }
}

struct Texts<T>(PhantomData<T>);

impl<'de, T> Visitor<'de> for Texts<T> {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of texts, or texts between commas")
    }

    fn visit_str<E>(self, text: &str) -> Result<Vec<String>, E> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        Ok(words.map(str::to_owned).collect())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<String>, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = seq.next_element()? {
            texts.push(text);
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_and_words_between_commas_are_the_same() {
        let read = |json: &str| serde_json::from_str::<Listed<u8>>(json);
        let array = read(r#"["1","2"]"#).unwrap();
        assert_eq!(array.to_vec(), [1, 2]);
        assert_eq!(read(r#"" 1, 2,""#).unwrap().to_vec(), [1, 2]);
        assert!(read(r#""""#).unwrap().is_empty());
        assert_eq!(serde_json::to_string(&array).unwrap(), r#"["1","2"]"#);
        assert!(read(r#"["one"]"#).is_err() && read("[1]").is_err() && read("1").is_err());
    }
}
