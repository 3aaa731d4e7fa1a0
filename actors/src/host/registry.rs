//! Stages and heads on this node, for links and requests that look for them.

use std::{
    collections::{HashMap, hash_map::Entry as MapEntry},
    sync::{Arc, PoisonError, RwLock},
};

use mesh_proto::{Epoch, ErrorCode, MeshError, NodeId, v1::Lanes, wire::StageSpec};

use super::claims::{Claim, Claims, StageOwner};
use crate::{
    head::HeadHandle,
    link::LINK_CREDITS,
    ports::link::{Accepted, CreditGrant, LinkAcceptor, LinkHello},
    stage::StageHandle,
};

type Key = (String, Epoch, u32);

struct Entry {
    /// Of the host's claim: later hosts have higher numbers.
    order: u64,
    spec: StageSpec,
    stage: StageHandle,
    head: Option<HeadHandle>,
    /// The link from the stage before, once it is there.
    inbound: Option<Arc<dyn CreditGrant>>,
    active: bool,
}

/// Shared by all hosts of a node. Locks are held for map operations only.
#[derive(Default)]
pub struct StageRegistry {
    claims: Arc<Claims>,
    entries: RwLock<HashMap<Key, Entry>>,
}

/// A stage's entry; dropping it takes the entry out and closes the link that came in, however its host ends.
pub(super) struct Registration {
    registry: Arc<StageRegistry>,
    key: Key,
    order: u64,
}

impl Registration {
    /// Stage 0 takes requests now.
    pub(super) fn activate(&self) {
        self.registry.write(|entries| {
            if let Some(entry) = entries.get_mut(&self.key).filter(|entry| entry.order == self.order) {
                entry.active = true;
            }
        });
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let entry = self.registry.write(|entries| {
            let own = entries.get(&self.key).is_some_and(|entry| entry.order == self.order);
            own.then(|| entries.remove(&self.key)).flatten()
        });
        if let Some(inbound) = entry.and_then(|entry| entry.inbound) {
            inbound.close();
        }
    }
}

impl StageRegistry {
    /// Claims a deployment's name for one of its stages.
    pub(super) fn claim(&self, owner: &StageOwner, spec: &StageSpec) -> Result<Claim, MeshError> {
        self.claims.take(owner, spec)
    }

    /// A loaded stage: links may come in now.
    ///
    /// # Errors
    ///
    /// The place is taken. Claims keep it free; whatever comes, no stage takes another's.
    pub(super) fn insert(
        self: &Arc<Self>,
        claim: &Claim,
        spec: StageSpec,
        stage: StageHandle,
        head: Option<HeadHandle>,
    ) -> Result<Registration, MeshError> {
        let (key, order) = ((spec.deployment.clone(), Epoch(spec.epoch), spec.stage), claim.order());
        let entry = Entry {
            order,
            spec,
            stage,
            head,
            inbound: None,
            active: false,
        };
        self.write(|entries| match entries.entry(key.clone()) {
            MapEntry::Vacant(place) => {
                place.insert(entry);
                Ok(())
            }
            MapEntry::Occupied(_) => {
                let message = format!("stage {} of {} in epoch {} is here already", key.2, key.0, key.1);
                Err(MeshError::new(ErrorCode::Conflict, message))
            }
        })?;
        Ok(Registration {
            registry: self.clone(),
            key,
            order,
        })
    }

    /// The head of a deployment, if it is on this node and takes requests.
    pub fn head(&self, deployment: &str) -> Option<HeadHandle> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let newest = entries
            .iter()
            .filter(|((name, ..), entry)| name == deployment && entry.active);
        newest
            .max_by_key(|(_, entry)| entry.order)
            .and_then(|(_, entry)| entry.head.clone())
    }

    /// All heads on this node.
    pub fn heads(&self) -> Vec<HeadHandle> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.values().filter_map(|entry| entry.head.clone()).collect()
    }

    /// Lanes of the deployments whose heads are on this node and take requests.
    pub fn lanes(&self) -> Vec<(String, Lanes)> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let active = entries.iter().filter(|(_, entry)| entry.active);
        active
            .filter_map(|((name, ..), entry)| Some((name.clone(), entry.head.as_ref()?.lanes())))
            .collect()
    }

    fn write<T>(&self, change: impl FnOnce(&mut HashMap<Key, Entry>) -> T) -> T {
        change(&mut self.entries.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LinkAcceptor for StageRegistry {
    fn accept(&self, from: NodeId, hello: &LinkHello, grant: Arc<dyn CreditGrant>) -> Result<Accepted, MeshError> {
        let key = (hello.deployment.clone(), hello.epoch, hello.to_stage);
        self.write(|entries| {
            let entry = entries.get_mut(&key).ok_or_else(|| {
                let message = format!(
                    "stage {} of {} in epoch {} is not on this node",
                    hello.to_stage, hello.deployment, hello.epoch
                );
                MeshError::new(ErrorCode::NotFound, message)
            })?;
            check(&entry.spec, from, hello)?;
            if entry.inbound.is_some() {
                let message = format!("stage {} of {} has its link already", hello.to_stage, hello.deployment);
                return Err(MeshError::new(ErrorCode::Conflict, message));
            }
            entry.inbound = Some(grant.clone());
            Ok(match &entry.head {
                Some(head) => {
                    head.accept(grant);
                    Accepted {
                        sink: Arc::new(head.clone()),
                        credits: LINK_CREDITS,
                    }
                }
                None => {
                    entry.stage.accept(grant);
                    Accepted {
                        sink: Arc::new(entry.stage.clone()),
                        credits: LINK_CREDITS,
                    }
                }
            })
        })
    }
}

/// A link must come from the neighbour, and both ends must hold parts of the same model.
fn check(spec: &StageSpec, from: NodeId, hello: &LinkHello) -> Result<(), MeshError> {
    let refuse = |message: String| Err(MeshError::new(ErrorCode::Protocol, message));
    let expected = if hello.to_stage == 0 {
        spec.stages.saturating_sub(1)
    } else {
        hello.to_stage - 1
    };
    if hello.from_stage != expected {
        return refuse(format!(
            "stage {} cannot link to stage {}",
            hello.from_stage, hello.to_stage
        ));
    }
    if spec.stage_nodes.get(expected as usize) != Some(&from.to_string()) {
        return refuse(format!(
            "stage {expected} of {} is not on the node that connects",
            hello.deployment
        ));
    }
    if hello.source_id != spec.source_id || hello.n_embd != spec.n_embd || hello.layer != spec.layer_start {
        return refuse(format!(
            "stages of {} do not fit together: source {} width {} layer {} meets source {} width {} layer {}",
            hello.deployment, hello.source_id, hello.n_embd, hello.layer, spec.source_id, spec.n_embd, spec.layer_start
        ));
    }
    Ok(())
}
