//! `mesh run MODEL PROMPT`.

use std::io::{IsTerminal as _, Read as _};

use clap::Args;
use mesh_proto::{
    sampling::default_sampling,
    v1::{FinishReason, GenerateRequest, Sampling, generate_request::Prompt},
};

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    generate::{chat, generate},
    output,
    signals::Interrupts,
};

const HELP: &str = "\
Examples:
  mesh run built-in \"Recite Genesis 1:1.\" --temperature 0
  git diff | mesh run smol - --max-tokens 200
  mesh run smol \"Once upon a time\" --raw --seed 7";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RunArgs {
    /// Name of the deployment, as `mesh status` shows it
    model: String,
    /// What to ask; - reads stdin
    #[arg(allow_hyphen_values = true)]
    prompt: String,
    /// Most tokens to generate [default: the room left in the context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// 0 always takes the most likely token; up to 2
    #[arg(long, default_value_t = 1.0, value_parser = temperature)]
    temperature: f32,
    /// The same seed gives the same answer [default: drawn]
    #[arg(long)]
    seed: Option<u64>,
    /// Go on from the prompt as it is, without the chat template
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: RunArgs) -> Result<(), Failure> {
    let text = if args.prompt == "-" { read_stdin()? } else { args.prompt };
    let request = GenerateRequest {
        model: args.model,
        prompt: Some(if args.raw { Prompt::Text(text) } else { chat(&text) }),
        sampling: Some(Sampling {
            temperature: args.temperature,
            seed: args.seed,
            ..default_sampling()
        }),
        max_tokens: args.max_tokens,
        ..GenerateRequest::default()
    };
    let mut interrupts = Interrupts::listen()?;
    let mut screen = Screen::new();
    let answering = async {
        let client = Client::connect(&args.connect).await?;
        generate(&client, request, |text| screen.show(text)).await
    };
    let generated = tokio::select! {
        generated = answering => generated,
        () = interrupts.next() => Err(Failure::interrupted("the answer is not complete")),
    };
    screen.end_line()?;
    let generated = generated?;
    if std::io::stderr().is_terminal() {
        let cut = if generated.finished.reason() == FinishReason::Length {
            ", cut off at the limit"
        } else {
            ""
        };
        output::note(&format!("({}{cut})", generated.speed()));
    }
    Ok(())
}

fn temperature(text: &str) -> Result<f32, String> {
    let value = text.parse::<f32>().ok().filter(|value| (0.0..=2.0).contains(value));
    value.ok_or_else(|| "use a number from 0 to 2".to_owned())
}

fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("cannot read the prompt from stdin: {error}; send UTF-8 text")))?;
    Ok(text)
}

/// stdout, which may be a terminal that obeys control characters.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: bool,
    /// Something was printed since the last line end.
    open_line: bool,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self {
            terminal: std::io::stdout().is_terminal(),
            open_line: false,
        }
    }

    /// Prints text at once. What a model says must not move the cursor or rename the window.
    pub(crate) fn show(&mut self, text: &str) -> Result<(), Failure> {
        if let Some(last) = text.chars().last() {
            self.open_line = last != '\n';
        }
        if self.terminal {
            output::print(&output::harmless(text))
        } else {
            output::print(text)
        }
    }

    /// Ends the last line, if it is still open.
    pub(crate) fn end_line(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.open_line) {
            output::print("\n")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperatures_are_numbers_from_0_to_2() {
        assert_eq!(temperature("0.5"), Ok(0.5));
        for text in ["-0.1", "2.1", "nan", "hot", ""] {
            assert!(temperature(text).is_err(), "{text}");
        }
    }
}
