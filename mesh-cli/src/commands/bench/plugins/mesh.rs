//! Nodes with and without plugins, and the measuring.

use std::collections::BTreeMap;

use mesh_proto::v1::ServeRequest;

use super::{
    PluginsArgs, STAGES,
    counters::Counters,
    libraries::Libraries,
    report::{MeshReport, Round, SituationReport},
    situation::{Loaded, Situation},
    texts::{MOST_TOKENS, Texts},
};
use crate::{
    client::Client,
    cluster::{Cluster, ClusterOptions},
    commands::{
        bench::prompt::{context_for, go_on},
        plugins::plugins,
        serve::serve,
    },
    failure::Failure,
    generate::Generated,
    output, path,
    plugin_view::PluginView,
};

/// Name of the deployment on all meshes.
pub(super) const DEPLOYMENT: &str = "bench";

/// Whose first node has stage 0.
const NAMES: [&str; STAGES] = ["a", "b", "c"];

/// As few tokens as warm caches without a query: the last token of a budget has no candidates behind it.
const TOKENS_WITHOUT_QUERY: u32 = 2;

/// What none says after each text.
pub(super) type Outputs = BTreeMap<Situation, String>;

/// All nodes of one way to serve the model.
pub(super) struct Mesh {
    pub(super) layers: u32,
    stages: usize,
    /// The one without plugins is the first.
    members: Vec<Member>,
}

/// Nodes that load the same.
struct Member {
    loaded: Loaded,
    cluster: Cluster,
}

/// One situation and its rounds.
struct Side {
    situation: Situation,
    member: usize,
    same_output: bool,
    rounds: Vec<Round>,
}

impl Mesh {
    /// Whole, or in stages of these layers.
    pub(super) async fn start(args: &PluginsArgs, libraries: &Libraries, layers: Option<u32>) -> Result<Self, Failure> {
        let stages = layers.map_or_else(|| Ok("1".to_owned()), stages)?;
        let names = if layers.is_some() { &NAMES[..] } else { &NAMES[..1] };
        let mut mesh = Self {
            layers: 0,
            stages: names.len(),
            members: Vec::new(),
        };
        for loaded in Loaded::ALL {
            let Some(plugins) = libraries.of(loaded) else {
                continue;
            };
            let options = ClusterOptions {
                threads: 1,
                exact: true,
                events: true,
                plugins: &plugins,
            };
            let cluster = Cluster::start(names, options).await?;
            let request = ServeRequest {
                model: path::model(&args.model)?,
                name: DEPLOYMENT.to_owned(),
                stages: stages.clone(),
                context: context_for(MOST_TOKENS, args.max_tokens),
                lanes: 1,
                exact: true,
                ..ServeRequest::default()
            };
            mesh.layers = serve(cluster.client(), request).await?.layers;
            mesh.members.push(Member { loaded, cluster });
        }
        Ok(mesh)
    }

    /// Of the node without plugins.
    pub(super) fn client(&self) -> &Client {
        self.members[0].cluster.client()
    }

    /// All rounds. `outputs` are what has been said before, if anything has.
    pub(super) async fn measure(
        &mut self,
        args: &PluginsArgs,
        texts: &Texts,
        outputs: Option<Outputs>,
    ) -> Result<(Outputs, MeshReport), Failure> {
        let mut outputs = outputs.unwrap_or_default();
        let mut sides = self.sides();
        for side in &mut sides {
            self.warm(side, args, texts, &mut outputs).await?;
        }
        for round in 0..args.rounds {
            output::note(&format!("round {} of {}", round + 1, args.rounds));
            for side in order(sides.len(), round as usize) {
                self.round(&mut sides[side], args, texts, &outputs).await?;
            }
        }
        let mut report = MeshReport::new(self.stages);
        let rounds: BTreeMap<Situation, Vec<Round>> =
            sides.iter().map(|side| (side.situation, side.rounds.clone())).collect();
        for side in sides {
            let plugin = self.plugin(side.member).await?;
            let baseline = &rounds[&side.situation.baseline()];
            let found = SituationReport::new(side.situation, side.rounds, baseline, plugin.as_ref(), side.same_output);
            found.check(side.situation)?;
            report.situations.insert(side.situation, found);
        }
        Ok((outputs, report))
    }

    pub(super) async fn stop(self) {
        for member in self.members {
            member.cluster.stop().await;
        }
    }

    fn sides(&self) -> Vec<Side> {
        let members = self.members.iter().enumerate();
        let sides = members.map(|(member, Member { loaded, .. })| Side {
            situation: loaded.situation(),
            member,
            same_output: true,
            rounds: Vec::new(),
        });
        sides.collect()
    }

    /// Caches are warm, and the outputs are those of none. One that is quarantined for being late is measured from its
    /// first query on.
    async fn warm(
        &self,
        side: &mut Side,
        args: &PluginsArgs,
        texts: &Texts,
        outputs: &mut Outputs,
    ) -> Result<(), Failure> {
        let text = texts.of(side.situation.text());
        if side.situation == Situation::AlwaysLate {
            self.generate(side.member, text, TOKENS_WITHOUT_QUERY).await?;
            return Ok(());
        }
        let said = self.generate(side.member, text, args.max_tokens).await?.text;
        let none = outputs.entry(side.situation.baseline()).or_insert_with(|| said.clone());
        side.same_output &= *none == said;
        Ok(())
    }

    async fn round(
        &self,
        side: &mut Side,
        args: &PluginsArgs,
        texts: &Texts,
        outputs: &Outputs,
    ) -> Result<(), Failure> {
        let before = self.plugin(side.member).await?;
        let text = texts.of(side.situation.text());
        let generated = self.generate(side.member, text, args.max_tokens).await?;
        let after = self.plugin(side.member).await?;
        side.same_output &= outputs[&side.situation.baseline()] == generated.text;
        let count = |plugin: &Option<PluginView>| plugin.as_ref().map(Counters::from).unwrap_or_default();
        let counted = count(&after).since(&count(&before));
        let health = after.map(|plugin| plugin.health);
        side.rounds.push(Round::of(&generated, counted, health)?);
        Ok(())
    }

    async fn generate(&self, member: usize, text: &str, max_tokens: u32) -> Result<Generated, Failure> {
        go_on(self.members[member].cluster.client(), DEPLOYMENT, text, max_tokens).await
    }

    /// The plugin of the member's head, if it has one.
    async fn plugin(&self, member: usize) -> Result<Option<PluginView>, Failure> {
        Ok(plugins(self.members[member].cluster.client()).await?.pop())
    }
}

/// Another one first in each round, forwards and backwards in turn: what one leaves behind does not always hit the same.
fn order(sides: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..sides).map(move |turn| {
        let turn = if round.is_multiple_of(2) { turn } else { sides - turn };
        (round + turn) % sides
    })
}

/// Layers in stages of about the same size, the first of them on the first node.
fn stages(layers: u32) -> Result<String, Failure> {
    let end = |stage: usize| layers as usize * stage / STAGES;
    if (layers as usize) < STAGES {
        return Err(Failure::failed(format!(
            "the model has {layers} layers, too few for {STAGES} stages; take another"
        )));
    }
    let stage = |(stage, name): (usize, &&str)| format!("{name}:{}-{}", end(stage), end(stage + 1));
    let stages: Vec<String> = NAMES.iter().enumerate().map(stage).collect();
    Ok(stages.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_measures_all_and_begins_with_another() {
        let rounds: Vec<Vec<usize>> = (0..3).map(|round| order(3, round).collect()).collect();
        assert_eq!(rounds, [[0, 1, 2], [1, 0, 2], [2, 0, 1]]);
    }

    #[test]
    fn stages_cover_all_layers() {
        assert_eq!(stages(8).unwrap(), "a:0-2,b:2-5,c:5-8");
        assert_eq!(stages(3).unwrap(), "a:0-1,b:1-2,c:2-3");
        assert!(stages(2).is_err());
    }
}
