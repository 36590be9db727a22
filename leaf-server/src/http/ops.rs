//! The routes of the ops listener.

use hyper::{Method, Request, StatusCode};

use super::Generators;
use super::answer::{Answer, not_allowed, text, try_again};

pub(super) fn route<B>(generators: &Generators, request: &Request<B>) -> Answer {
    let read_only = matches!(*request.method(), Method::GET | Method::HEAD);
    match request.uri().path() {
        "/healthz" | "/readyz" if !read_only => not_allowed("GET"),
        "/healthz" => text(StatusCode::OK, "ok"),
        "/readyz" => {
            let health = generators.health();
            if health.can_answer() {
                text(StatusCode::OK, health.to_string())
            } else {
                try_again(health.to_string())
            }
        }
        _ => text(StatusCode::NOT_FOUND, "no such route: try /readyz"),
    }
}
