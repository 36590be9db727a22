//! Tests that docs/openapi.yaml has the routes of both listeners, and no others.

use std::collections::BTreeSet;

use super::routes::Route;
use super::{id_routes, ops};

/// The method and path of each route in a table, as in `GET /v1/tags/{tag}`.
fn of_table<T>(routes: &[Route<T>]) -> impl Iterator<Item = String> {
    routes.iter().flat_map(|route| {
        let path = route.path.replace('*', "");
        route.methods.split(", ").map(move |method| format!("{method} {path}"))
    })
}

#[test]
fn the_document_has_the_routes_and_no_others() {
    let document = include_str!("../../../docs/openapi.yaml");
    let document: serde_json::Value = serde_saphyr::from_str(document).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let documented = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().keys().filter(|name| *name != "parameters");
        methods.map(move |method| format!("{} {path}", method.to_ascii_uppercase()))
    });
    let routes = of_table(id_routes::ROUTES).chain(of_table(ops::ROUTES));
    assert_eq!(documented.collect::<BTreeSet<_>>(), routes.collect());
}
