//! The gRPC messages of `leaf-server`, `proto/leaf/v1/leaf.proto`, and what tonic makes of them.
//!
//! The generated code is in the repository, so that no build needs `protoc`; a test compares it
//! with what the files would make now. `LEAF_BLESS=1 cargo test -p leaf-proto` writes it anew.

/// Package `leaf.v1`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod v1 {
    include!("generated/leaf.v1.rs");
}

/// The compiled `.proto` file as an encoded `FileDescriptorSet`, for gRPC server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/leaf.v1.bin");
