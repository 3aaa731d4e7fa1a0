//! What a plugin wants and can.

use std::ops::BitOr;

use mesh_plugin_abi as abi;

/// A set of capabilities; join them with [`Capabilities::with`], which works in constants, or with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Begin, finish and abort only, without token ids.
    pub const NONE: Self = Self(0);
    /// Call [`crate::Plugin::commit`].
    pub const WANTS_COMMITS: Self = Self(abi::MESH_CAP_WANTS_COMMITS);
    /// Give token ids with begin, commit, finish, queries and reports.
    pub const WANTS_TOKEN_IDS: Self = Self(abi::MESH_CAP_WANTS_TOKEN_IDS);
    /// Call [`crate::Plugin::report`].
    pub const WANTS_REPORTS: Self = Self(abi::MESH_CAP_WANTS_REPORTS);
    /// Call [`crate::Plugin::start_proposal`] and what belongs to it.
    pub const PROPOSES: Self = Self(abi::MESH_CAP_PROPOSES);
    /// Never two calls at once.
    pub const SERIAL: Self = Self(abi::MESH_CAP_SERIAL);

    /// Both sets.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in it.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// As the table has it.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl BitOr for Capabilities {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}
