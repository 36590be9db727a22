//! Tests that docs/openapi.yaml has exactly the routes of both listeners, and that it and
//! docs/operations.md have exactly the reasons for refusals.

use std::collections::BTreeSet;

use super::problem::Problem;
use super::routes::Route;
use super::{id_routes, ops};
use crate::refusal::Reason;

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

#[test]
fn the_documents_have_the_reasons_and_no_others() {
    let of_reason = |reason: &Reason| match *reason {
        // Only gRPC has it.
        Reason::NoSuchCall => (reason.word(), String::new()),
        reason => (reason.word(), Problem::new(reason, "").status().as_u16().to_string()),
    };
    // Some reasons share a word.
    let reasons: BTreeSet<_> = Reason::ALL.iter().map(of_reason).collect();

    let operations = include_str!("../../../docs/operations.md");
    let table =
        operations.lines().skip_while(|line| *line != "| reason | HTTP | meaning |").skip(2);
    let of_row = |row: &'static str| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        (cells[1].trim_matches('`'), cells[2].to_owned())
    };
    let mut documented: Vec<_> = table.take_while(|row| row.starts_with('|')).map(of_row).collect();
    documented.sort_unstable();
    assert_eq!(documented, Vec::from_iter(reasons.clone()));

    let document: serde_json::Value =
        serde_saphyr::from_str(include_str!("../../../docs/openapi.yaml")).unwrap();
    let described =
        document["components"]["schemas"]["Problem"]["properties"]["type"]["description"]
            .as_str()
            .unwrap();
    let mut listed: Vec<_> = described.split_once("one of ").unwrap().1.split(", ").collect();
    listed.sort_unstable();
    let of_http = reasons.iter().filter(|(_, status)| !status.is_empty());
    assert_eq!(listed, Vec::from_iter(of_http.map(|(word, _)| *word)));
}
