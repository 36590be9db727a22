//! The program `leaf-server`; all of it is in the library.

fn main() -> std::process::ExitCode {
    leaf_server::main()
}
