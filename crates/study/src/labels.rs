//! How the choices of an axis are shown: absolute paths by the parts that differ.

use std::path::{Component, Path};

/// The texts to show for `names`, in their order. Where all are absolute paths, each is shown
/// without the components that all have in common at the start and the end: `/opt/20.1/bin/node`
/// and `/opt/22.3/bin/node` are shown as `20.1` and `22.3`. Otherwise, and if one would be empty,
/// the names themselves.
pub fn labels(names: &[&str]) -> Vec<String> {
    let unchanged = || names.iter().map(|name| (*name).to_owned()).collect();
    let paths: Vec<Vec<&str>> = names.iter().map(|name| components(name)).collect();
    if names.len() < 2 || paths.iter().any(Vec::is_empty) {
        return unchanged();
    }
    let start = count_shared(&paths, &|path, index| path.get(index).copied());
    let end = count_shared(&paths, &|path, index| path.iter().rev().nth(index).copied());
    let short: Vec<String> = paths
        .iter()
        .map(|path| path.get(start..path.len().saturating_sub(end)).unwrap_or_default().join("/"))
        .collect();
    if short.iter().any(String::is_empty) { unchanged() } else { short }
}

/// The components of an absolute path; none if `name` is something else.
fn components(name: &str) -> Vec<&str> {
    let mut components = Path::new(name).components();
    if components.next() != Some(Component::RootDir) {
        return Vec::new();
    }
    components.filter_map(|component| component.as_os_str().to_str()).collect()
}

/// The number of components that all paths have in common, counted by `get` from one side.
fn count_shared<'a>(paths: &[Vec<&'a str>], get: &dyn Fn(&[&'a str], usize) -> Option<&'a str>) -> usize {
    let is_shared = |index: &usize| {
        let mut components = paths.iter().map(|path| get(path, *index));
        let first_component = components.next().flatten();
        first_component.is_some() && components.all(|component| component == first_component)
    };
    (0..).take_while(is_shared).count()
}

#[cfg(test)]
mod tests {
    use super::labels;

    #[test]
    fn paths_are_shown_by_what_differs() {
        for (names, expected) in [
            (&["/opt/20.1/bin/node", "/opt/22.3/bin/node"][..], &["20.1", "22.3"][..]),
            (&["/usr/bin/perl", "/opt/perl/bin/perl"], &["usr", "opt/perl"]),
            (&["/usr/bin/java"], &["/usr/bin/java"]),
            (&["node", "/opt/22.3/bin/node"], &["node", "/opt/22.3/bin/node"]),
            (&["/bin/node", "/bin/node/bin/node"], &["/bin/node", "/bin/node/bin/node"]),
            (&["/", "/a"], &["/", "/a"]),
            (&["alternate", "oldest"], &["alternate", "oldest"]),
            (&["/a/1", "/a/1"], &["/a/1", "/a/1"]),
            (&[], &[]),
        ] {
            assert_eq!(labels(names), expected, "{names:?}");
        }
    }
}
