//! Plots as separate files, and their addresses in a page.

use std::path::{Component, Path, PathBuf};

use super::cleaned::cleaned;
use super::names::{Names, slug};
use super::page::Page;
use super::plot;

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureFile {
    /// Its name in the directory of pictures.
    pub name: String,
    /// Its content.
    pub svg: String,
}

/// Makes an SVG file of every plot of `page`, the page of `study`. Sets the plots' addresses, to
/// which Markdown refers, below the directory address `address`.
pub fn pictures(page: &mut Page, study: &str, address: &str, names: &mut Names) -> Vec<PictureFile> {
    // Use the cleaned title for the file name as well.
    let cleaned_page = cleaned(page);
    let mut files = Vec::new();
    for (section, cleaned_section) in page.sections.iter_mut().zip(&cleaned_page.sections) {
        for (plot, cleaned_plot) in section.plots.iter_mut().zip(&cleaned_section.plots) {
            let base_name = format!("{}-{}", slug(study), slug(&cleaned_plot.title));
            let name = format!("{}.svg", names.unique(&base_name));
            plot.address = if address.is_empty() { name.clone() } else { format!("{address}/{name}") };
            files.push(PictureFile { name, svg: plot::file(cleaned_plot) });
        }
    }
    files
}

/// The address of `folder` relative to the directory `from`, both absolute paths. Encoded for
/// Markdown: without spaces and brackets.
pub fn address(folder: &Path, from: &Path) -> String {
    let shared_count = folder.components().zip(from.components()).take_while(|(a, b)| a == b).count();
    let ascent = from.components().skip(shared_count).map(|_| Component::ParentDir);
    let path: PathBuf = ascent.chain(folder.components().skip(shared_count)).collect();
    encoded(&path.to_string_lossy())
}

/// Percent-encodes a path.
pub fn encoded(path: &str) -> String {
    let mut address = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                address.push(char::from(byte));
            }
            _ => address += &format!("%{byte:02X}"),
        }
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::page::{Plot, Section};

    #[test]
    fn a_folder_is_relative_to_the_file() {
        let relative = |folder: &str, from: &str| address(Path::new(folder), Path::new(from));
        assert_eq!(relative("/a/b/plots", "/a/b"), "plots");
        assert_eq!(relative("/a/plots", "/a/b/c"), "../../plots");
        assert_eq!(relative("/a/b", "/a/b"), "");
        assert_eq!(relative("/a/my plots (1)", "/a"), "my%20plots%20%281%29");
    }

    #[test]
    fn plots_of_the_same_title_have_separate_files() {
        let plot = |title: &str| Plot { title: title.to_owned(), ..Plot::default() };
        let section =
            Section { plots: vec![plot("By size"), plot("By size"), plot("</title>")], ..Section::default() };
        let mut page = Page { sections: vec![section], ..Page::default() };
        let pictures = pictures(&mut page, "mine", "p", &mut Names::default());
        let names: Vec<&str> = pictures.iter().map(|picture| picture.name.as_str()).collect();
        assert_eq!(names, ["mine-by-size.svg", "mine-by-size-2.svg", "mine-title.svg"]);
        assert_eq!(page.sections[0].plots[1].address, "p/mine-by-size-2.svg");
        for PictureFile { svg, .. } in &pictures {
            assert!(svg.starts_with("<svg ") && svg.contains("fill=\"#ffffff\"") && !svg.contains("<script"));
        }
    }
}
