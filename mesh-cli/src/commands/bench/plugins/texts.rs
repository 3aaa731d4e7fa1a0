//! The two texts: one after which the model repeats itself, one after which it does not.
//!
//! No text does it with every model, so several are tried and judged by what the model makes of them without a plugin.

use super::{mesh::DEPLOYMENT, situation::Text};
use crate::{
    client::Client,
    commands::bench::prompt::{PASSAGE, go_on},
    failure::Failure,
};

/// Length of the text that repeats, about: several times each passage.
const REPEATING_TOKENS: u32 = 160;

/// Length of the other, about.
const OTHER_TOKENS: u32 = 32;

/// Longer than both, in the tokens of any model.
pub(super) const MOST_TOKENS: u32 = 224;

/// Short passages that are repeated until the text is long enough. Public domain.
const REPEATED: [&str; 4] = [
    "And God saw the light, that it was good. ",
    "Row, row, row your boat, gently down the stream. ",
    "one two three four five six seven eight nine ten ",
    "The name of the river is Pison, and the name of the second river is Gihon. ",
];

/// Places in [`PASSAGE`] from which a text is cut.
const CUTS: usize = 6;

/// Beginnings that have much to go on with.
const BEGINNINGS: [&str; 4] = [
    "Once upon a time an old sailor came home from the sea, and he told his daughter what he had seen there:",
    "The history of the city began long before the first map of it was drawn. In the spring of that year,",
    "Dear Sir, I write to you about the machine that you sent us last month. When we opened the box,",
    "Now the serpent was more subtil than any beast of the field which the LORD God had made.",
];

/// What models are given to go on with.
#[derive(Debug)]
pub(super) struct Texts {
    repeating: String,
    other: String,
}

impl Texts {
    /// Tries texts on a node without plugins.
    pub(super) async fn find(client: &Client, max_tokens: u32) -> Result<Self, Failure> {
        let mut repeating = Vec::new();
        for passage in REPEATED {
            repeating.push(cut(client, passage, 0, REPEATING_TOKENS).await?);
        }
        let mut other: Vec<String> = BEGINNINGS.map(str::to_owned).into();
        let words = PASSAGE.split_whitespace().count();
        for place in 0..CUTS {
            other.push(cut(client, PASSAGE, place * words / CUTS, OTHER_TOKENS).await?);
        }
        Ok(Self {
            repeating: best(client, max_tokens, repeating, |repetition| repetition).await?,
            other: best(client, max_tokens, other, |repetition| -repetition).await?,
        })
    }

    pub(super) fn of(&self, text: Text) -> &str {
        match text {
            Text::Repeating => &self.repeating,
            Text::Other => &self.other,
        }
    }
}

/// Words of a passage, again and again from one of them on, of about so many tokens together.
async fn cut(client: &Client, passage: &str, from: usize, tokens: u32) -> Result<String, Failure> {
    let words: Vec<&str> = passage.split_whitespace().collect();
    let all = go_on(client, DEPLOYMENT, passage, 1)
        .await?
        .finished
        .prompt_tokens
        .max(1);
    let count = (words.len() * tokens as usize / all as usize).max(1);
    let cut: Vec<&str> = words.iter().copied().cycle().skip(from).take(count).collect();
    Ok(cut.join(" "))
}

/// The text after which the model says most, and of those the one whose repetition has the most merit.
async fn best(
    client: &Client,
    max_tokens: u32,
    texts: Vec<String>,
    merit: impl Fn(f64) -> f64,
) -> Result<String, Failure> {
    let mut best = (0, f64::NEG_INFINITY, String::new());
    for text in texts {
        let generated = go_on(client, DEPLOYMENT, &text, max_tokens).await?;
        let merit = merit(repetition(&text, &generated.text));
        let tokens = generated.finished.completion_tokens;
        if tokens > best.0 || (tokens == best.0 && merit > best.1) {
            best = (tokens, merit, text);
        }
    }
    Ok(best.2)
}

/// Share of the words of the output that come after the same two words as the time before.
fn repetition(prompt: &str, output: &str) -> f64 {
    let all = format!("{prompt}{output}");
    let words: Vec<&str> = all.split_whitespace().collect();
    let first = prompt.split_whitespace().count().max(2);
    let repeats = |place: &usize| {
        let before = &words[place - 2..*place];
        let earlier = (2..*place)
            .rev()
            .find(|earlier| words[earlier - 2..*earlier] == *before);
        earlier.is_some_and(|earlier| words[earlier] == words[*place])
    };
    let count = (first..words.len()).filter(repeats).count();
    count as f64 / words.len().saturating_sub(first).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_told_from_what_does_not() {
        assert_eq!(repetition("a b c a b", " c a b c a"), 1.0);
        assert_eq!(repetition("a b c", " d e f g"), 0.0);
        assert_eq!(repetition("a b c a b", " c d e f"), 0.25);
        assert_eq!(repetition("", ""), 0.0);
    }
}
