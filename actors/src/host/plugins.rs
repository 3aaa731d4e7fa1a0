//! Plugins take their seats at a model whose head is on this node.

use futures::future::join_all;
use mesh_proto::MeshError;

use crate::{
    plugin::{ModelPlugins, PluginHandle, Seat},
    ports::plugin::ModelFacts,
};

/// Offers the model to all plugins, side by side. One that refuses or takes too long is reported, and the model is
/// served without it.
///
/// # Errors
///
/// A plugin that is required did not take the model.
pub async fn seat_plugins(plugins: &[PluginHandle], model: &ModelFacts) -> Result<ModelPlugins, MeshError> {
    let offers = plugins.iter().map(|plugin| async move {
        let seat = plugin.activate(model.clone()).await;
        if let Err(error) = &seat {
            let required = plugin.is_required();
            tracing::warn!(plugin = %plugin.facts().name, model = %model.model, required, %error, "plugin not activated");
        }
        match seat {
            Err(error) if plugin.is_required() => Err(error),
            seat => Ok(seat.ok()),
        }
    });
    let seats = join_all(offers)
        .await
        .into_iter()
        .collect::<Result<Vec<Option<Seat>>, _>>()?;
    Ok(ModelPlugins::new(seats.into_iter().flatten().collect()))
}
