//! Models split over several files by `llama-gguf-split`: `NAME-00001-of-00003.gguf`, numbered from 1 in names and
//! from 0 in the key `split.no`.

use std::path::{Path, PathBuf};

use crate::error::GgufError;
use crate::gguf::Gguf;
use crate::limits::MAX_PARTS;

/// Which part of how many a file says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// From 1.
    pub(crate) number: u32,
    pub(crate) count: u32,
}

impl Position {
    fn ending(self) -> String {
        format!("-{:05}-of-{:05}.gguf", self.number, self.count)
    }
}

/// What the keys of one file say; `None` for a file that is not split.
pub(crate) fn position(part: &Gguf) -> Result<Option<Position>, GgufError> {
    let Some(count) = part.get("split.count") else {
        return Ok(None);
    };
    let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
    let count = count.filter(|count| *count <= MAX_PARTS).ok_or_else(|| {
        part.bad_key(
            "split.count",
            format!("is not a number of parts up to {MAX_PARTS}: split the model again"),
        )
    })?;
    if count <= 1 {
        return Ok(None);
    }
    let index = part.get_u32("split.no").ok_or_else(|| part.missing("split.no"))?;
    if index >= count {
        return Err(part.bad_key(
            "split.no",
            format!("is {index}, but there are only {count} parts: split the model again"),
        ));
    }
    Ok(Some(Position {
        number: index + 1,
        count,
    }))
}

/// Opens the whole set that `path` belongs to.
pub(crate) fn open_set(path: &Path) -> Result<Gguf, GgufError> {
    let opened = Gguf::read_part(path, 0)?;
    let Some(position) = position(&opened)? else {
        return Ok(opened);
    };
    let paths = sibling_paths(path, position)?;
    let missing: Vec<PathBuf> = paths.iter().filter(|path| !path.exists()).cloned().collect();
    if !missing.is_empty() {
        return Err(GgufError::MissingParts {
            count: position.count,
            missing,
        });
    }
    let mut whole: Option<Gguf> = None;
    for (index, path) in paths.iter().enumerate() {
        let part = Gguf::read_part(path, index)?;
        check_position(
            &part,
            path,
            Position {
                number: index as u32 + 1,
                count: position.count,
            },
        )?;
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => whole.append(part),
        }
    }
    let whole = whole.unwrap_or(opened);
    check_together(&whole)?;
    Ok(whole)
}

/// Paths of all parts, derived from the name of one of them.
fn sibling_paths(path: &Path, position: Position) -> Result<Vec<PathBuf>, GgufError> {
    let renamed = || GgufError::RenamedPart {
        file: path.to_owned(),
        number: position.number,
        count: position.count,
        expected: position.ending(),
    };
    // Names need not be UTF-8 on every system, but those that follow the pattern and are not cannot be rebuilt.
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(renamed)?;
    let prefix = match name.strip_suffix(&position.ending()) {
        Some(prefix) => prefix,
        None => return Err(swapped_or_renamed(path, name, position)),
    };
    Ok((1..=position.count)
        .map(|number| {
            path.with_file_name(format!(
                "{prefix}{}",
                Position {
                    number,
                    count: position.count
                }
                .ending()
            ))
        })
        .collect())
}

/// A name that follows the pattern with another number means that parts were swapped.
fn swapped_or_renamed(path: &Path, name: &str, inside: Position) -> GgufError {
    match position_in_name(name) {
        Some(named) => GgufError::SwappedPart {
            file: path.to_owned(),
            expected: named.number,
            count: named.count,
            found: inside.number,
            found_count: inside.count,
        },
        None => GgufError::RenamedPart {
            file: path.to_owned(),
            number: inside.number,
            count: inside.count,
            expected: inside.ending(),
        },
    }
}

fn position_in_name(name: &str) -> Option<Position> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(number) || !digits(count) {
        return None;
    }
    Some(Position {
        number: number.parse().ok()?,
        count: count.parse().ok()?,
    })
}

fn check_position(part: &Gguf, path: &Path, expected: Position) -> Result<(), GgufError> {
    let found = position(part)?;
    if found == Some(expected) {
        return Ok(());
    }
    Err(GgufError::SwappedPart {
        file: path.to_owned(),
        expected: expected.number,
        count: expected.count,
        found: found.map_or(0, |found| found.number),
        found_count: found.map_or(0, |found| found.count),
    })
}

/// No tensor twice, and as many as the first part announces.
fn check_together(whole: &Gguf) -> Result<(), GgufError> {
    let disagree = |reason| GgufError::PartsDisagree {
        file: whole.path().to_owned(),
        reason,
    };
    let mut names: Vec<&str> = whole.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(disagree(format!("tensor `{}` is in two of them", pair[0])));
    }
    let announced = whole
        .get_u64("split.tensors.count")
        .ok_or_else(|| whole.missing("split.tensors.count"))?;
    if announced != whole.tensors().len() as u64 {
        return Err(disagree(format!(
            "they hold {} tensors, {announced} were announced",
            whole.tensors().len()
        )));
    }
    Ok(())
}
