//! The gRPC service and messages of `leaf-server`, as Rust code that tonic generates from
//! `proto/leaf/v1/leaf.proto`.
//!
//! The generated code is committed, so that no build needs `protoc`. A test generates it again and
//! compares; `LEAF_BLESS=1 cargo test -p leaf-proto` overwrites it.

/// Package `leaf.v1`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod v1 {
    include!("generated/leaf.v1.rs");
}

/// The compiled `.proto` file as an encoded `FileDescriptorSet`, for gRPC server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/leaf.v1.bin");
