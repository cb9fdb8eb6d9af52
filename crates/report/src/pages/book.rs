//! Several pages as one: a contents with what came of each, and the machine told once.

use super::page::{Page, Table};

/// Pages in one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Book {
    /// Its heading.
    pub title: String,
    /// What came of all, in a sentence.
    pub headline: String,
    /// A row for each chapter, in their order: its name, and what came of it.
    pub contents: Table,
    /// The chapters.
    pub chapters: Vec<Chapter>,
    /// The machine and the settings, of all chapters: name and value.
    pub environment: Vec<(String, String)>,
}

/// A page of a book.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chapter {
    /// What the chapter is called by.
    pub name: String,
    /// What is in it; its own environment is not shown.
    pub page: Page,
}
