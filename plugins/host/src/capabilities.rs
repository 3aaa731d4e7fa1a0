//! What a plugin wants and can.

use mesh_plugin_abi::{
    MESH_CAP_PROPOSES, MESH_CAP_SERIAL, MESH_CAP_WANTS_COMMITS, MESH_CAP_WANTS_REPORTS, MESH_CAP_WANTS_TOKEN_IDS,
};

use crate::Callback;

/// The capability flags of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Call `commit_generation`.
    pub wants_commits: bool,
    /// Give token ids along.
    pub wants_token_ids: bool,
    /// Call `report_proposal`.
    pub wants_reports: bool,
    /// Call `start_proposal`.
    pub proposes: bool,
    /// Never two calls at once.
    pub serial: bool,
}

impl Capabilities {
    /// Unknown bits are ignored: a newer plugin may have abilities that this host does not use.
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            wants_commits: bits & MESH_CAP_WANTS_COMMITS != 0,
            wants_token_ids: bits & MESH_CAP_WANTS_TOKEN_IDS != 0,
            wants_reports: bits & MESH_CAP_WANTS_REPORTS != 0,
            proposes: bits & MESH_CAP_PROPOSES != 0,
            serial: bits & MESH_CAP_SERIAL != 0,
        }
    }

    /// Whether these flags let a function be called.
    pub(crate) const fn allow(self, callback: Callback) -> bool {
        match callback {
            Callback::Commit => self.wants_commits,
            Callback::Report => self.wants_reports,
            Callback::Start | Callback::Poll | Callback::Cancel => self.proposes,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_its_own_bit() {
        let flags = |bits| {
            let read = Capabilities::from_bits(bits);
            [
                read.wants_commits,
                read.wants_token_ids,
                read.wants_reports,
                read.proposes,
                read.serial,
            ]
        };
        for bit in 0..5 {
            let expected: [bool; 5] = std::array::from_fn(|index| index == bit);
            assert_eq!(flags(1 << bit), expected);
        }
        assert_eq!(flags(!0b1_1111), [false; 5]);
    }
}
