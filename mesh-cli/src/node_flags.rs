//! The settings of a node as flags of `mesh node start|join`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use crate::{
    failure::Failure,
    local_node::{ConfigOverrides, ReceiptPolicy},
    path,
    plugin_flags::PluginFlags,
};

/// Settings. What is not given comes from `MESH_*` variables, then the file, then the defaults.
#[derive(Debug, Args)]
pub(crate) struct NodeFlags {
    /// Name of the node, unique in its mesh [default: the host's name]
    #[arg(long)]
    name: Option<String>,
    /// Where the node keeps its key, token and stage files [default: $MESH_HOME, else the platform's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Configuration file [default: config.toml in the data directory]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the OpenAI-compatible API [default: 127.0.0.1:9470]
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// Address of gRPC [default: 127.0.0.1:9471]
    #[arg(long, value_name = "ADDRESS")]
    grpc: Option<SocketAddr>,
    /// UDP address that other nodes reach this one at [default: every interface, a free port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Most compute threads of one stage [default: the cores, shared among the stages of this host]
    #[arg(long)]
    threads: Option<u32>,
    /// Memory that stages may use, such as 6GiB or 800MB [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Faster prefill; the same request may then give other bytes when split, batched or recovered
    #[arg(long)]
    no_exact: bool,
    /// Layers of a stage that go to the GPU, in builds with a GPU back end [default: all]
    #[arg(long, value_name = "N")]
    gpu_layers: Option<u32>,
    /// A name under which the HTTP port may be asked, beside localhost and the node's address; can be given more than once
    #[arg(long = "allow-host", value_name = "NAME")]
    allow_hosts: Vec<String>,
    /// Origin of web pages that may ask, such as http://localhost:3000; can be given more than once [default: none]
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    allow_origins: Vec<String>,
    /// Most connections from one address, for a proxy on another machine; loopback is not counted [default: a quarter]
    #[arg(long, value_name = "N")]
    connections_per_address: Option<usize>,
    /// Header that carries the caller's agent session, such as x-agent-session [default: none]
    #[arg(long, value_name = "NAME")]
    agent_session_header: Option<String>,
    /// Tell nobody of requests: no lifecycle events, receipts or lists
    #[arg(long)]
    no_events: bool,
    /// Keep receipts of all requests in the data directory; fsync always, each second (interval), or never
    #[arg(long, value_name = "FSYNC", num_args = 0..=1, require_equals = true, default_missing_value = "interval")]
    #[arg(value_parser = parse_policy)]
    receipts: Option<ReceiptPolicy>,
    /// Keep token ids in those receipts too: whoever reads the files can have the answers
    #[arg(long)]
    receipt_tokens: bool,
    /// Listen off loopback without an API key: whoever reaches the port may generate
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    plugins: PluginFlags,
    /// What is logged on stderr, such as info or warn,mesh_links=debug [default: info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Print the settings in force, secrets left out, and end
    #[arg(long)]
    pub(crate) print_config: bool,
    /// End when stdin does: for nodes that are children of another program
    #[arg(long, hide = true)]
    pub(crate) exit_with_parent: bool,
}

impl NodeFlags {
    /// What the flags say over other sources.
    pub(crate) fn overrides(&self) -> Result<ConfigOverrides, Failure> {
        let absolute = |given: &Option<PathBuf>| given.as_deref().map(path::absolute).transpose();
        Ok(ConfigOverrides {
            config: absolute(&self.config)?,
            name: self.name.clone(),
            data_dir: absolute(&self.data_dir)?,
            http: self.http,
            grpc: self.grpc,
            listen: self.listen,
            threads: self.threads,
            memory: self.memory,
            no_exact: self.no_exact,
            gpu_layers: self.gpu_layers,
            allow_hosts: self.allow_hosts.clone(),
            allow_origins: self.allow_origins.clone(),
            connections_per_address: self.connections_per_address,
            agent_session_header: self.agent_session_header.clone(),
            no_events: self.no_events,
            receipts: self.receipts,
            receipt_tokens: self.receipt_tokens,
            insecure: self.insecure,
            log: self.log.clone(),
            plugins: self.plugins.0.clone(),
        })
    }
}

fn parse_policy(text: &str) -> Result<ReceiptPolicy, String> {
    ReceiptPolicy::parse(text).ok_or_else(|| format!("use one of {}", ReceiptPolicy::NAMES.join(", ")))
}

/// A number of bytes, with a unit or without.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic() || letter == ' ');
    let unit = text[digits.len()..].trim();
    let scale: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return Err(format!("{unit:?} is not a unit; use MB, GB, MiB or GiB")),
    };
    let number: f64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is not a size; write one such as 6GiB"))?;
    let bytes = number * scale as f64;
    if !(bytes.is_finite() && bytes >= 1.0 && bytes < u64::MAX as f64) {
        return Err(format!("{text:?} is out of range; write a size such as 6GiB"));
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("1024", 1024),
            ("6GiB", 6 << 30),
            ("6 gib", 6 << 30),
            ("800MB", 800_000_000),
            ("1.5k", 1536),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "-1", "0", "1e300", "6 parsecs", "nan", "é"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
