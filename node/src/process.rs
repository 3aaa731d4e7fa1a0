//! What concerns the process as a whole.

use std::{
    fmt::{self, Debug},
    io::IsTerminal,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::field::Field;
use tracing_subscriber::{
    EnvFilter,
    field::MakeExt as _,
    fmt::format::{Writer, debug_fn},
};

use crate::terminal;

/// Prepares the process for exact mode. Call it first in `main`, before any thread starts: llama.cpp reads its
/// environment once.
pub fn prepare_process(exact: bool) {
    mesh_engine::prepare_process(exact);
}

/// Sends logs to standard error. A second call changes nothing.
///
/// # Errors
///
/// The filter cannot be read; the message says why.
pub fn init_logging(filter: &str) -> Result<(), crate::NodeError> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        crate::NodeError::Config(format!(
            "--log {filter:?}: {error}; use a level such as info, or target=level pairs"
        ))
    })?;
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .fmt_fields(debug_fn(write_field).delimited(" "))
        .with_writer(std::io::stderr);
    let _ = subscriber.with_ansi(colours).try_init();
    Ok(())
}

/// A field of a log line. What it quotes of files and peers stays on its line and sends nothing to the terminal.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let text = terminal::one_line(&format!("{value:?}"), terminal::LONGEST_TEXT);
    match field.name() {
        "message" => write!(writer, "{text}"),
        name => write!(writer, "{}={text}", name.strip_prefix("r#").unwrap_or(name)),
    }
}

/// Files that this process may open, after it has raised the limit as far as it may. Most systems set it low for the sake
/// of programs that use `select`, which nothing here does.
pub(crate) fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Some systems have a limit of their own below the one they name.
    let in_force = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files stays as it is");
            limit
        }
    };
    in_force.current.unwrap_or(u64::MAX)
}

/// Version of the llama.cpp that is built in, by the crate that brings it.
pub fn llama_version() -> String {
    env!("MESH_LLAMA_VERSION").to_owned()
}
