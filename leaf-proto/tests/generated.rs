//! The generated code is that of the files.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;

#[test]
fn the_generated_code_is_that_of_the_files() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = crate_dir.join("proto");
    let descriptors = protox::compile(["leaf/v1/leaf.proto"], [&proto]).unwrap();
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .build_transport(false)
        .out_dir(out.path())
        .file_descriptor_set_path(out.path().join("leaf.v1.bin"))
        .compile_fds(descriptors.clone())
        .unwrap();
    let encoded = prost::Message::encode_to_vec(&descriptors);
    std::fs::write(out.path().join("leaf.v1.bin"), encoded).unwrap();
    let committed = crate_dir.join("src/generated");
    for file in ["leaf.v1.rs", "leaf.v1.bin"] {
        let made = std::fs::read(out.path().join(file)).unwrap();
        let at = committed.join(file);
        if std::env::var_os("LEAF_BLESS").is_some() {
            std::fs::create_dir_all(&committed).unwrap();
            std::fs::write(&at, &made).unwrap();
        }
        let same = std::fs::read(&at).is_ok_and(|there| there == made);
        assert!(
            same,
            "{file} is not what the .proto files make: LEAF_BLESS=1 cargo test -p leaf-proto"
        );
    }
}
