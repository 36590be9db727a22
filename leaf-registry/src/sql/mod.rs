//! What the SQL databases share.

pub(crate) mod fence_rows;
