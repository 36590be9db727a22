//! Finds the route of a path. A test compares the tables of routes with docs/openapi.yaml.

use crate::metrics::Operation;

/// A path, its methods, and what answers it.
pub(super) struct Route<T> {
    /// Like `GET, POST`.
    pub(super) methods: &'static str,
    /// `{name}` stands for one part of a path, `{*name}` at its end for all the rest.
    pub(super) path: &'static str,
    pub(super) to: T,
    /// The operation under which requests for it are counted.
    pub(super) operation: Operation,
}

impl<T: Copy> Route<T> {
    /// A row of a table of routes.
    pub(super) const fn new(
        methods: &'static str,
        path: &'static str,
        to: T,
        operation: Operation,
    ) -> Self {
        Self { methods, path, to, operation }
    }
}

/// A route, and its parameters, still percent-encoded.
pub(super) type Found<'path, T> = (&'static Route<T>, Vec<&'path str>);

/// The route of a path.
pub(super) fn find<'path, T>(
    routes: &'static [Route<T>],
    path: &'path str,
) -> Option<Found<'path, T>> {
    routes.iter().find_map(|route| Some((route, parameters(route.path, path)?)))
}

/// The parts of a path that a template has parameters for; `None` if the path does not match the
/// template.
fn parameters<'path>(template: &str, mut path: &'path str) -> Option<Vec<&'path str>> {
    let mut found = Vec::new();
    for part in template.split('/').skip(1) {
        path = path.strip_prefix('/')?;
        if part.starts_with("{*") {
            found.push(path);
            return Some(found);
        }
        let end = path.find('/').unwrap_or(path.len());
        let (here, rest) = path.split_at(end);
        match part.starts_with('{') {
            true => found.push(here),
            false if part == here => {}
            false => return None,
        }
        path = rest;
    }
    path.is_empty().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::parameters;

    #[test]
    fn a_path_has_the_form_of_its_template() {
        assert_eq!(parameters("/v1/tags/{tag}", "/v1/tags/a%2Fb"), Some(vec!["a%2Fb"]));
        assert_eq!(parameters("/v1/tags/{tag}", "/v1/tags/a/b"), None);
        assert_eq!(parameters("/v1/tags/{tag}", "/v1/tags"), None);
        assert_eq!(parameters("/v1/tags", "/v1/tags"), Some(vec![]));
        assert_eq!(parameters("/v1/tags", "/v1/tags/"), None);
        assert_eq!(parameters("/v1/{a}/x/{b}", "/v1//x/2"), Some(vec!["", "2"]));
        assert_eq!(parameters("/api/get/{*key}", "/api/get/a/b"), Some(vec!["a/b"]));
        assert_eq!(parameters("/api/get/{*key}", "/api/get/"), Some(vec![""]));
    }
}
